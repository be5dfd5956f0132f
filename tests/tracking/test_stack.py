"""A local stack tracks all its runs when it is asked to."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from sluice.cli import main
from sluice.local.services import Service
from sluice.local.stack import StackOptions, plan_stack
from tests.api.run_shelf import ThreadServer
from tests.tracking.conftest import ROOT, ForgetfulShelf, TrackedRun
from tests.tracking.test_jsonl import numbers, wait_for


def tracker(tmp_path: Path, *targets: str) -> list[Service]:
    stack = plan_stack(StackOptions(data=tmp_path / "data", model=tmp_path, track_to=targets))
    return [dataclasses.replace(service, name=stack.api_url) for service in stack.services if service.name == "tracker"]


def test_a_stack_has_a_tracker_only_when_it_is_asked_for_one(tmp_path: Path) -> None:
    assert tracker(tmp_path) == []
    (service,) = tracker(tmp_path, "jsonl:a/", "jsonl:b/")
    assert (service.after, service.optional) == (("coordinator",), True)


def test_the_tracker_of_a_stack_tracks_every_run_also_those_to_come(
    run: TrackedRun, server: ThreadServer, shelf: ForgetfulShelf, tmp_path: Path
) -> None:
    (service,) = tracker(tmp_path, f"jsonl:{tmp_path}/one/", f"jsonl:{tmp_path}/two/")
    argv = [run.url if word == service.name else word for word in service.commands[0].argv]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    run.steps(0)
    wait_for(tmp_path / "one" / f"{run.id}.jsonl", 1)
    run.end()
    later = TrackedRun(server, shelf)
    later.steps(0, 1)
    for folder in ("one", "two"):
        wait_for(tmp_path / folder / f"{later.id}.jsonl", 2)
        assert numbers(tmp_path / folder / f"{later.id}.jsonl") == [1, 2]
    process.terminate()
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    logged = [json.loads(line) for line in said.splitlines()]
    assert {(line["service"], line["run"]) for line in logged} == {("tracker", run.id), ("tracker", later.id)}


def test_a_target_that_is_none_is_said_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "configs/tiny.toml", "--track-to", "jsonl:new.jsonl"]) == 2
    said = "--to jsonl:new.jsonl: is one file for many runs; give a folder: jsonl:new.jsonl/"
    assert capsys.readouterr().err == f"sluice: {said}\n"
