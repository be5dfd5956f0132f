"""Whatever is the user's to mend is one line on standard error and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cli import main
from sluice.local.ports import free_ports
from tests.api.run_shelf import ThreadServer

CASES = {
    "a command that does not exist": (["trian"], "No such command 'trian'"),
    "an option that does not exist": (["runs", "--al"], "No such option: --al"),
    "a number that is none": (["logs", "--group", "x"], "--group = x: must be a whole number; `sluice --help`"),
    "a number out of range": (["logs", "--group", "-1"], "--group = -1: must be at least 0; `sluice --help`"),
    "an argument that is missing": (["pause"], "Missing argument 'RUN'"),
    "a run file that is not there": (["run", "absent.toml"], "absent.toml: No such file or directory"),
    "a run file that is a folder": (["run", "configs"], "configs: Is a directory"),
    "an override of nothing": (["run", "configs/tiny.toml", "--set", "total_steps"], "write section.key=value"),
    "an override of an unknown field": (
        ["run", "configs/tiny.toml", "--set", "trainer.steps=3"],
        "trainer.steps: no such field",
    ),
    "an override inside a value": (
        ["run", "configs/tiny.toml", "--set", "name.first=x"],
        "name is a value, not a section",
    ),
    "a key that cannot be sent": (
        ["run", "configs/tiny.toml", "--idempotency-key", "two words", "--at", "http://127.0.0.1:1"],
        "--idempotency-key (Idempotency-Key) = 'two words': must have 1 to 200 characters",
    ),
    "an audit at no address": (
        ["audit", "tiny-0", "--nats-url", "nats:4222"],
        "--nats-url (SLUICE_NATS_URL)=nats:4222: 'nats:4222' is not of the form nats://HOST:4222",
    ),
    "an audit at an API that tells of no NATS": (
        ["audit", "tiny-0", "--at", "http://127.0.0.1:1"],
        "--at (SLUICE_API_URL) = http://127.0.0.1:1: no stack of this folder has its API there, and no API tells where "
        "its NATS is; give --nats-url (SLUICE_NATS_URL) too",
    ),
    "a list that is none": (
        ["run", "configs/tiny.toml", "--set", "data.train_files=3"],
        "data.train_files = 3: must be a list",
    ),
    "a list with a wrong entry": (
        ["run", "configs/tiny.toml", "--set", "data.train_files=[1]"],
        "sluice: data.train_files.0 = 1: must be a text in quotes\n",
    ),
    "a list that is empty": (
        ["run", "configs/tiny.toml", "--set", "data.train_files=[]"],
        "data.train_files = []: must not be empty",
    ),
    "two fields of a section that contradict each other": (
        ["run", "configs/tiny.toml", "--set", "checkpoint.keep_every=7"],
        "sluice: checkpoint: keep_every = 7 must be a multiple of interval = 5",
    ),
    "an override out of range": (
        ["run", "configs/tiny.toml", "--set", "optim.lr=-1"],
        "optim.lr = -1: must be above 0",
    ),
    "no stack": (["runs", "--at", "no-such-stack"], "no stack called 'no-such-stack' runs in this folder"),
    "a model that is not there": (
        ["up", "configs/tiny.toml", "--name", "no-such-stack", "--set", "model.path=models/absent"],
        "model.path = models/absent: there is no such folder",
    ),
    "a stack with a path for a name": (
        ["up", "configs/tiny.toml", "--name", "../x", "--set", "model.path={model}"],
        "--name = '../x': a stack's name is 1 to 64",
    ),
    "a demo without a name": (
        ["demo", "--config", "configs/tiny.toml", "--name", "", "--set", "model.path={model}"],
        "--name = '': a stack's name is 1 to 64",
    ),
    "a demo of a model that is nobody's": (
        ["demo", "--config", "configs/tiny.toml", "--set", "model.path=models/absent"],
        "model.path = models/absent: there is no such folder",
    ),
}


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error, with nothing on standard output."""
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("sluice: ") and errors.count("\n") == 1, errors
    return errors


@pytest.mark.parametrize("case", CASES)
def test_a_fault_of_the_user_is_one_line_and_exit_code_2(
    case: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = CASES[case]
    assert main([argument.replace("{model}", str(tiny_model)) for argument in arguments]) == 2
    assert expected in said(capsys)


@pytest.mark.parametrize("text", ["name = ", "[trainer", "\x00", "trainer = 3"])
def test_a_run_file_that_is_no_run_file_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert main(["run", str(file), "--dry-run"]) == 2
    said(capsys)


def test_a_dead_port_is_one_line_that_names_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_ports(1)[0]
    for command in (["runs"], ["watch"], ["stop", "tiny-0"], ["run", "configs/tiny.toml"]):
        assert main([*command, "--at", f"http://127.0.0.1:{port}"]) == 2
        assert f"no coordinator answers at http://127.0.0.1:{port}" in said(capsys)


def test_an_unknown_run_is_one_line(server: ThreadServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "absent-1", "--at", server.url]) == 2
    assert "there is no run 'absent-1'; `sluice runs` lists them" in said(capsys)


def test_a_refused_spec_is_the_servers_own_line(server: ThreadServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "configs/tiny.toml", "--set", "model.path=nowhere", "--at", server.url]) == 2
    assert "model.path = nowhere" in said(capsys)


def test_a_coordinator_that_is_not_ready_is_exit_code_1(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.shelf.away = True
    assert main(["watch", "tiny-0", "--at", server.url]) == 1
    assert "NATS did not answer" in said(capsys)


def test_the_installed_command_shows_no_traceback() -> None:
    command = [sys.executable, "-m", "sluice.cli", "run", "absent.toml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "sluice: run file absent.toml: No such file or directory\n"


def test_help_explains_every_command_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    from sluice.cli.app import app

    for command in app.registered_commands:
        assert command.callback is not None
        assert command.callback.__doc__
        assert main([command.name or command.callback.__name__, "--help"]) == 0
        assert capsys.readouterr().out


def test_judging_a_file_that_is_not_there_is_exit_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "absent.jsonl", "--verifier", "exact"]) == 2
    errors = capfd.readouterr().err
    assert "absent.jsonl" in errors and "Traceback" not in errors
