"""What who follows a run sees of it: across a failover, in a pipe, and on a narrow terminal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from sluice import client as client_module
from sluice.cli import main
from sluice.types import RunState
from tests.api.run_shelf import RunShelf, ThreadServer
from tests.servers import free_port

SECONDS = 20
AWAY = "coordinator away, trying again for 300 s\n"


@pytest.fixture
def follower() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of the test; none of them outlives it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", [["run", "configs/tiny.toml"], ["watch"]])
def test_who_follows_a_run_stays_through_a_failover_and_misses_no_step(
    command: list[str], follower: list[subprocess.Popen[str]]
) -> None:
    shelf, port = RunShelf(), free_port()
    with ThreadServer(shelf, port=port) as first:
        if command == ["watch"]:
            assert main(["run", "configs/tiny.toml", "--detach", "--at", first.url]) == 0
        arguments = [sys.executable, "-m", "sluice.cli", *command, "--at", first.url]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        follower.append(process)
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().endswith("queued\n")
        (run_id,) = shelf.runs
        first.do(shelf.emit(run_id, "step", step=0))
        assert any(line.startswith("step 1/20") for line in process.stdout)
    assert process.stderr.readline() == AWAY
    asyncio.run(shelf.emit(run_id, "step", step=1))  # while nobody answers
    with ThreadServer(shelf, port=port) as second:
        assert any(line.startswith("step 2/20") for line in process.stdout)
        shelf.change(run_id, state=RunState.SUCCEEDED)
        second.do(shelf.emit(run_id, "state", state="succeeded"))
        rest, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert rest == f"run {run_id} is succeeded\n" and errors == ""
    follower.clear()


def test_a_coordinator_that_stays_away_ends_the_watching_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 1.0)
    shelf, codes = RunShelf(), []
    with ThreadServer(shelf) as server:
        assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url]) == 0
        watching = threading.Thread(target=lambda: codes.append(main(["watch", "--at", server.url])))
        watching.start()
        while not any("is queued" in line for line in capsys.readouterr().out.splitlines()):
            pass
    watching.join(SECONDS)
    said = capsys.readouterr().err.splitlines()
    assert codes == [1]
    assert said[-1].startswith(f"sluice: the coordinator at {server.url} was away for 1 s")


def test_a_coordinator_that_was_never_there_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--at", f"http://127.0.0.1:{free_port()}"]) == 2
    assert capsys.readouterr().err.startswith("sluice: no coordinator answers at http://127.0.0.1:")
