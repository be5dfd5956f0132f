"""What who follows a run sees of it: across a failover, in a pipe, and on a narrow terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from sluice import client as client_module
from sluice.cli import main
from sluice.types import RunState
from sluice.views import BottleneckView
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
        shown, until = "", time.monotonic() + SECONDS
        while "is queued" not in shown and time.monotonic() < until:
            shown += capsys.readouterr().out  # may have half a line
            time.sleep(0.01)
    watching.join(SECONDS)
    said = capsys.readouterr().err.splitlines()
    assert codes == [1]
    assert said[-1].startswith(f"sluice: the coordinator at {server.url} was away for 1 s")


def test_a_coordinator_that_was_never_there_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--at", f"http://127.0.0.1:{free_port()}"]) == 2
    assert capsys.readouterr().err.startswith("sluice: no coordinator answers at http://127.0.0.1:")


def test_who_reads_a_pipe_is_told_what_holds_the_run_back_whenever_that_changes(
    server: ThreadServer, follower: list[subprocess.Popen[str]]
) -> None:
    assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url]) == 0
    (run_id,) = server.shelf.runs
    arguments = [sys.executable, "-m", "sluice.cli", "watch", "--at", server.url]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    follower.append(process)
    assert process.stdout is not None and process.stdout.readline() == f"run {run_id} is queued\n"
    for part in ("rollouts", "trainer"):
        verdict = BottleneckView(part=part, text="somebody waits", knob="a knob")
        server.shelf.change(run_id, bottleneck=verdict)
        assert process.stdout.readline() == f"bottleneck: {part}: somebody waits; would help: a knob\n"


def on_a_terminal(arguments: list[str], columns: int = 80) -> list[str]:
    """The lines that a command leaves on a terminal so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    with subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", *arguments], stdout=theirs, stdin=theirs, env=environment
    ):
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in shown.splitlines()]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what a terminal says when nobody writes to it any more
        return b""


def test_a_narrow_terminal_shows_one_line_a_step(server: ThreadServer) -> None:
    assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url]) == 0
    (run_id,) = server.shelf.runs
    dropped, staleness = {"all_correct": 13, "all_wrong": 10}, {"0": 4, "1": 12, "3": 1}
    numbers = {"reward_mean": 0.625, "keep_rate": 0.8, "response_length_mean": 123.25, "tokens_per_second": 98181.0}
    learned = {"version": "v100.1", "loss": -0.0123, "grad_norm": 1.5, "seconds": {"total": 142.2}}
    server.do(server.shelf.emit(run_id, "batch", step=99, dropped=dropped, staleness=staleness, **numbers))
    server.do(server.shelf.emit(run_id, "step", step=99, **learned))
    server.shelf.change(run_id, state=RunState.FAILED, reason="CUDA out of memory\nTraceback:\n  line 7")
    narrow = on_a_terminal(["watch", run_id, "--at", server.url])
    values = ["100", "v100.1", "0.625", "80%", "23", "0-3", "123.2", "98181", "-0.0123", "1.50", "142.2"]
    assert values in [line.split() for line in narrow]
    assert any("CUDA out of memory …" in line for line in narrow) and not any("Traceback" in line for line in narrow)
    wide = on_a_terminal(["watch", run_id, "--at", server.url], columns=200)
    assert any("all_correct 13, all_wrong 10" in line and "0:4 1:12 3:1" in line for line in wide)


def test_a_list_of_runs_has_a_line_for_each_however_long_its_reason_is(server: ThreadServer) -> None:
    assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url]) == 0
    (run_id,) = server.shelf.runs
    server.shelf.change(run_id, state=RunState.FAILED, reason=f"first {'x' * 200}\nsecond\nthird")
    for columns in (80, 120):
        terminal = on_a_terminal(["runs", "--at", server.url], columns)
        assert len(terminal) == 2 and len(terminal[1]) == columns
        assert "first xxx" in terminal[1] and terminal[1].endswith("x …")
    listed = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "runs", "--at", server.url], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    assert len(listed) == 2 and listed[1].rstrip().endswith(f"first {'x' * 200} …")
