"""Submitting, listing, steering and watching runs from the command line, over real HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from sluice.cli import main
from sluice.types import RunState
from tests.api.run_shelf import RunShelf, ThreadServer

BATCH = {
    "reward_mean": 0.625,
    "keep_rate": 0.8,
    "dropped": {"all_correct": 3, "all_wrong": 1},
    "staleness": {"0": 4, "1": 12},
    "response_length_mean": 3.25,
    "tokens_per_second": 181.0,
}
TRAINING = {"version": "v1.1", "loss": 0.0123, "grad_norm": 1.5, "seconds": {"total": 4.2}}


def submit(server: ThreadServer, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The id of a run that was submitted and left alone."""
    assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url, *options]) == 0
    run_id, _, state = capsys.readouterr().out.strip().partition(": ")
    assert state == "queued"
    return run_id


def test_a_submitted_run_is_listed_and_steered(server: ThreadServer, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = submit(server, capsys)
    assert main(["runs", "--at", server.url]) == 0
    assert run_id in capsys.readouterr().out
    for command, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        assert main([command, run_id, "--at", server.url, "--reason", "lunch"]) == 0
        assert capsys.readouterr().out == f"{run_id}: {state} (lunch)\n"


def test_who_reads_the_list_through_a_pipe_gets_a_run_a_line_whatever_its_reason(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.shelf.change(submit(server, capsys), reason="a row is broken " * 20)
    assert main(["runs", "--at", server.url]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.count("a row is broken") == 20


def test_submitting_twice_with_one_key_gives_one_run(server: ThreadServer, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {submit(server, capsys, "--idempotency-key", "once") for _ in range(2)}
    assert len(runs) == 1


def test_whoever_waits_for_a_run_to_be_created_is_told_what_takes_so_long(
    server: ThreadServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, told in ((30.0, False), (0.0, True)):
        monkeypatch.setattr("sluice.cli.submit.NOTICE_SECONDS", seconds)
        assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url]) == 0
        assert ("is loading the data" in capsys.readouterr().err) == told


def test_runs_can_be_read_by_programs(server: ThreadServer, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = submit(server, capsys, "--set", "trainer.total_steps=7")
    assert main(["runs", "--json", "--at", server.url]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["total_steps"]) == (run_id, 7)


def test_an_empty_list_says_what_to_do(server: ThreadServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--at", server.url]) == 0
    assert "sluice run RUN_FILE" in capsys.readouterr().out


def watch_to_the_end(server: ThreadServer, run_id: str, end: RunState) -> int:
    """Exit code of a `watch` during which the run makes one step and ends."""

    def advance() -> None:
        time.sleep(0.3)
        server.shelf.change(run_id, state=RunState.RUNNING, reason="")
        late = {"name": "straggler", "waits_for": "group 7", "seconds": 600.2, "deadline_seconds": 600.0}
        server.do(server.shelf.emit(run_id, "alarm", **late))
        server.do(server.shelf.emit(run_id, "alarm", alarm="diverged", error="the loss of groups [2] is NaN or Inf"))
        server.do(server.shelf.emit(run_id, "alarm", wait="weight_sync", error="the engine is down", knob="a.knob"))
        server.do(server.shelf.emit(run_id, "batch", step=0, **BATCH))
        server.do(server.shelf.emit(run_id, "step", step=0, **TRAINING))
        server.shelf.change(run_id, state=end, reason="the end")
        server.do(server.shelf.emit(run_id, "state", state=str(end)))

    thread = threading.Thread(target=advance)
    thread.start()
    try:
        return main(["watch", "--at", server.url])
    finally:
        thread.join()


def test_watching_prints_a_line_a_step_and_ends_with_the_run(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = submit(server, capsys)
    assert watch_to_the_end(server, run_id, RunState.SUCCEEDED) == 0
    lines = capsys.readouterr().out.splitlines()
    (step,) = [line for line in lines if line.startswith("step ")]
    for part in ("1/20", "v1.1", "reward 0.625", "kept 80%", "all_correct 3, all_wrong 1", "0:4 1:12", "181 tokens/s"):
        assert part in step
    assert "alarm: straggler has waited for group 7 for 600 s" in lines
    assert "alarm: diverged: the loss of groups [2] is NaN or Inf" in lines
    assert "alarm: weight_sync: the engine is down" in lines
    assert lines[-1] == f"run {run_id} is succeeded: the end"


def test_watching_a_run_that_fails_is_exit_code_1(server: ThreadServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch_to_the_end(server, submit(server, capsys), RunState.FAILED) == 1


def test_watching_a_run_that_has_ended_shows_its_steps_and_returns(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = submit(server, capsys)
    server.do(server.shelf.emit(run_id, "batch", step=0, **BATCH))
    server.do(server.shelf.emit(run_id, "step", step=0, **TRAINING))
    server.shelf.change(run_id, state=RunState.STOPPED, reason="lunch")
    assert main(["watch", run_id, "--at", server.url]) == 0
    assert "reward 0.625" in capsys.readouterr().out


def test_a_last_step_whose_event_came_after_the_end_is_shown_too(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = submit(server, capsys)
    server.shelf.change(run_id, state=RunState.SUCCEEDED, training_steps=1)

    def finish() -> None:
        time.sleep(1.0)
        server.do(server.shelf.emit(run_id, "batch", step=0, **BATCH))
        server.do(server.shelf.emit(run_id, "step", step=0, **TRAINING))

    thread = threading.Thread(target=finish)
    thread.start()
    assert main(["watch", run_id, "--at", server.url]) == 0
    thread.join()
    assert "step 1/20" in capsys.readouterr().out


def test_the_token_of_the_environment_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadServer(RunShelf(), token="secret") as server:
        assert main(["runs", "--at", server.url]) == 2
        assert "bearer token" in capsys.readouterr().err
        monkeypatch.setenv("SLUICE_API_TOKEN", "secret")
        assert main(["runs", "--at", server.url]) == 0


@pytest.mark.parametrize("command", [["run", "configs/tiny.toml"], ["watch"]])
def test_leaving_a_run_says_that_it_goes_on_and_how_to_come_back(command: list[str], server: ThreadServer) -> None:
    if command == ["watch"]:
        assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url]) == 0
    arguments = [sys.executable, "-m", "sluice.cli", *command, "--at", server.url]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()  # it follows the run, or is about to
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    (run_id,) = server.shelf.runs
    assert errors == f"{run_id} goes on; sluice watch {run_id} follows it again, sluice stop {run_id} ends it\n"
    assert process.returncode == 130
