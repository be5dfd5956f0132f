"""Forking, resuming and deleting from the command line, over real HTTP."""

from __future__ import annotations

import pytest

from sluice.cli import main
from sluice.types import RunState
from tests.api.run_shelf import ThreadServer


def submit(server: ThreadServer, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What `sluice run` says of a run that was submitted and left alone."""
    assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url, *options]) == 0
    return capsys.readouterr().out.strip()


def refused(server: ThreadServer, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command, "--at", server.url]) == 2
    return capsys.readouterr().err


def test_a_fork_has_the_changes_that_were_set_and_says_where_it_begins(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(server, capsys)
    options = ["--step", "5", "--set", "optim.lr=1e-5", "--set", "trainer.total_steps=9", "--detach"]
    assert main(["fork", "tiny-0", *options, "--at", server.url]) == 0
    assert capsys.readouterr().out == "tiny-1: queued (from step 5 of tiny-0)\n"
    spec = server.shelf.runs["tiny-1"].spec or {}
    assert (spec["optim"]["lr"], spec["trainer"]["total_steps"]) == (1e-5, 9)
    assert "no checkpoint of step 4" in refused(server, capsys, "fork", "tiny-0", "--step", "4")
    assert "write section.key=value" in refused(server, capsys, "fork", "tiny-0", "--set", "lr")


def test_resume_auto_follows_what_goes_on_and_begins_anew_only_where_there_is_nothing(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(server, capsys, "--resume", "auto") == "tiny-0: queued"
    assert submit(server, capsys, "--resume", "auto") == "tiny-0: queued"
    message = refused(server, capsys, "run", "configs/tiny.toml", "--resume", "auto", "--set", "optim.lr=1")
    assert "tiny-0 is queued with another optim.lr" in message
    server.shelf.change("tiny-0", state=RunState.STOPPED)
    assert submit(server, capsys, "--resume", "auto") == "tiny-1: queued (from step 5 of tiny-0)"


def test_resume_auto_leaves_a_finished_run_as_it_is_unless_more_is_asked_for(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(server, capsys)
    server.shelf.change("tiny-0", state=RunState.SUCCEEDED, training_steps=20)
    command = ["run", "configs/tiny.toml", "--resume", "auto", "--at", server.url]
    assert main(command) == 0
    assert capsys.readouterr().out == "tiny-0: succeeded (finished with training step 20 of 20)\n"
    assert list(server.shelf.runs) == ["tiny-0"]
    more = submit(server, capsys, "--resume", "auto", "--set", "trainer.total_steps=30")
    assert more == "tiny-1: queued (from step 5 of tiny-0)"


def test_resume_takes_a_run_a_step_or_a_folder_and_refuses_the_rest(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(server, capsys, "--resume", "disabled") == "tiny-0: queued"
    assert submit(server, capsys, "--resume", "tiny-0@5").endswith("(from step 5 of tiny-0)")
    assert submit(server, capsys, "--resume", "tiny-0").endswith("(from step 5 of tiny-0)")
    assert submit(server, capsys, "--resume", "data/checkpoints/tiny-0/5.1") == "tiny-3: queued"
    run = ("run", "configs/tiny.toml", "--resume")
    assert "data/elsewhere is no checkpoint" in refused(server, capsys, *run, "data/elsewhere")
    assert "there is no run 'nope'; `sluice runs` lists them" in refused(server, capsys, *run, "nope")
    assert "write disabled, auto, RUN" in refused(server, capsys, *run, "tiny-0@newest")


def test_only_a_run_that_has_ended_can_be_deleted_and_as_often_as_one_likes(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(server, capsys)
    assert "the run is queued" in refused(server, capsys, "delete", "tiny-0")
    server.shelf.change("tiny-0", state=RunState.SUCCEEDED)
    for _ in range(2):
        assert main(["delete", "tiny-0", "--keep-checkpoints", "--at", server.url]) == 0
        assert capsys.readouterr().out.endswith("its checkpoints stay\n")
    assert "there is no run" in refused(server, capsys, "delete", "tiny-1")


def test_a_failed_run_resumes_without_a_batch_and_not_otherwise(
    server: ThreadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(server, capsys)
    server.shelf.change("tiny-0", state=RunState.FAILED)
    assert "has failed" in refused(server, capsys, "resume", "tiny-0")
    assert main(["resume", "tiny-0", "--skip-batch", "3", "--reason", "a bad row", "--at", server.url]) == 0
    assert capsys.readouterr().out == "tiny-0: running (a bad row)\n"


def test_a_replay_is_asked_for_one_thing_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--train", "--no-filter"], ["--no-filter", "--from", "3"]):
        assert main(["replay", "tiny-0", *options]) == 2
        assert "give --train" in capsys.readouterr().err
