"""What Weights & Biases keeps of a tracked run while it is offline, record by record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from sluice.tracking.target import library
from sluice.tracking.wandb_file import records
from sluice.types import RunState
from tests.tracking.conftest import TrackedRun


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """wandb's folder; nothing leaves this machine, and its own process ends with the test."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "wandb"
    wandb.teardown()


def told(folder: Path, run_id: str) -> list[Any]:
    """All that wandb would send to its server, in order, once its own process has ended."""
    wandb.teardown()
    messages = library("wandb.proto.wandb_internal_pb2")
    files = sorted(folder.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    return [messages.Record.FromString(record) for file in files for record in records(file.read_bytes())]


def history(folder: Path, run_id: str) -> list[dict[str, Any]]:
    return [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
        for record in told(folder, run_id)
        if record.HasField("history")
    ]


def test_an_offline_run_has_every_step_once_however_often_it_is_tracked(run: TrackedRun, offline: Path) -> None:
    run.steps(0, 1)
    run.end()
    target = "wandb:team/dapo"
    assert run.track(target, options=("--name", "baseline")) == 0
    (file,) = offline.glob("offline-run-*/run-*.wandb")
    while len(history(offline, run.id)) == 2:
        file.write_bytes(file.read_bytes()[:-50])  # as a crash leaves it: wandb writes out late
    run.steps(2)
    assert run.track(target, options=("--name", "baseline")) == 0
    assert run.track(target, options=("--name", "baseline")) == 0

    steps = history(offline, run.id)
    assert [(step["_step"], step["actor/loss"], step["reward/mean"]) for step in steps] == [
        (1, 0.0, 0.0),
        (2, 0.1, 0.01),
        (3, 0.2, 0.02),
    ]
    assert {step["_timestamp"] for step in steps} == {1767312000.0}  # NOW of the events
    begun = [record.run for record in told(offline, run.id) if record.HasField("run")]
    assert {(r.entity, r.project, r.run_id, r.display_name) for r in begun} == {("team", "dapo", run.id, "baseline")}
    config = {update.key: json.loads(update.value_json) for update in begun[0].config.update}
    assert (config["run_id"], config["trainer"]["total_steps"]) == (run.id, 20)


def test_evaluations_say_which_version_they_are_of_and_the_last_one_has_a_row_of_its_own(
    run: TrackedRun, offline: Path
) -> None:
    run.evaluate(0, 0.25)
    run.steps(0, 1)
    run.evaluate(2, 0.5)
    run.end()
    for _ in range(2):
        assert run.track("wandb:dapo") == 0
    rows = history(offline, run.id)
    tracked = [(row.get("evaluation/policy_version"), row.get("evaluation/sums/avg@8")) for row in rows]
    assert tracked == [(0, 0.25), (None, None), (2, 0.5)]
    assert [row.get("actor/loss") for row in rows] == [0.0, 0.1, None]


def test_a_run_that_failed_is_marked_so(run: TrackedRun, offline: Path) -> None:
    run.steps(0)
    run.end(RunState.FAILED)
    assert run.track("wandb:dapo") == 0
    assert [record.exit.exit_code for record in told(offline, run.id) if record.HasField("exit")] == [1]


def test_without_a_key_it_is_one_line(
    run: TrackedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert run.track("wandb:dapo") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("sluice: wandb:dapo: ")


def test_records_are_whole_however_blocks_cut_them() -> None:
    # of 7 bytes each: what fits into what is left of the block is the first part of it
    record, header, block = b"x" * 70_000, 7, 32 << 10
    first, middle = block - 2 * header, block - header
    last = len(record) - first - middle
    log = bytearray(b":W&B\xe1\xbe\x00")
    for kind, length in ((2, first), (3, middle), (4, last), (1, 3), (1, 3)):
        log += bytes(4) + length.to_bytes(2, "little") + bytes([kind]) + b"x" * length
    assert [len(found) for found in records(bytes(log))] == [70_000, 3, 3]
    assert [len(found) for found in records(bytes(log[:-1]))] == [70_000, 3]
