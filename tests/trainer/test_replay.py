"""A recorded run trained again: it agrees with itself, with nothing else, and says what can be trained again at all."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog

from services.trainer.chain import extend
from services.trainer.config import TrainerSettings
from services.trainer.process import run_replay
from sluice.transport.archive import Archive
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_event
from sluice.types import Checkpoint, Drop, DropReason, Origin, RunCreated, RunState, StateChange, TrainingFailed
from sluice.weights.manifest import adapters_run
from sluice.wire import subjects
from tests.trainer.running import chain_by_hand, checkpoints, lineages, records, tensors, train, versions
from tests.trainer.script import RUN, Script, make_spec

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.usefixtures("one_rank"),
]


async def replay(settings: TrainerSettings, start: str | None = None) -> int:
    """Replay in this process; the exit code."""
    chosen = argparse.Namespace(run=RUN, start=start, tolerance=1e-5, weights_tolerance=1e-6, json=True)
    return await asyncio.to_thread(run_replay, settings, False, chosen, structlog.get_logger())


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the last replay printed; the log of this process is on the same stream."""
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


async def test_a_batch_that_a_person_took_out_makes_no_update_and_a_replay_agrees_with_all_that_was_made(
    bus: Bus, tiny_model: Path, settings: TrainerSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(bus, make_spec(tiny_model, checkpoint={"interval": 2}, optim={"lr": 1e-3, "lr_warmup_steps": 3}))
    await script.create()
    for _ in range(3):
        await script.add_batch()
    poisoned = await script.add_batch(behaviour=math.nan)
    assert await train(settings) == 4
    await script.ledger.append(StateChange(RunState.FAILED, "the loss is NaN"))
    await script.ledger.append(Drop(tuple(group.n for group in poisoned.groups), DropReason.SKIPPED_BATCH))
    await script.ledger.append(StateChange(RunState.RUNNING, "resumed without batch 3", '{"forgiven_lineage": 1}'))
    fifth = await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0
    assert await lineages(bus) == [(1, 0), (2, 2)]
    published = await versions(bus)
    assert list(published)[-4:] == ["v2.2", "v3.2", "v4.2", "v5.2"]
    third, skipped, last = [await tensors(published[f"v{k}.2"], tmp_path) for k in (3, 4, 5)]
    assert third == skipped != last
    chain = extend(extend(chain_by_hand(script, 3), ()), fifth.groups)
    assert published["v5.2"].chain == chain == (await checkpoints(bus))[-1].chain
    before = await records(bus)

    assert await replay(settings) == 0
    rows = found(capsys)["versions"]
    assert [row["version"] for row in rows] == ["v0.1", "v1.1", "v2.2", "v3.2", "v4.2", "v5.2"]
    assert all(row["hash_equal"] and row["chain_equal"] for row in rows)
    assert all(row["differences"]["loss"] == 0.0 for row in rows[1:])
    assert await replay(settings, str(settings.checkpoints_dir / RUN / "4.2")) == 0
    assert [row["version"] for row in found(capsys)["versions"]] == ["v4.2", "v5.2"]
    assert await records(bus) == before, "a replay writes nothing"

    await publish_event(bus, RUN, "step", {"step": 4, "loss": 0.5, "grad_norm": 1.0})
    assert await replay(settings, "4") == 1
    wrong = found(capsys)["versions"][-1]
    assert (wrong["agrees"], wrong["hash_equal"]) == (False, True) and wrong["differences"]["loss"] > 0.1


async def test_what_a_purge_took_is_archived_and_a_replay_starts_behind_it(
    bus: Bus, tiny_model: Path, settings: TrainerSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(bus, make_spec(tiny_model, checkpoint={"interval": 1}))
    await script.create()
    for _ in range(4):
        await script.add_batch(await script.floors())
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0
    archive = Archive(bus, RUN)
    assert [n for n in range(8) if await archive.group(n)] == [0, 1, 2, 3], "two groups a batch; two batches purged"
    group = await archive.group(1)
    assert group is not None and group.rollouts == script.batches[0].groups[1].rollouts

    assert await replay(settings) == 0
    assert [row["version"] for row in found(capsys)["versions"]] == ["v3.1", "v4.1"]
    assert await replay(settings, "0") == 2
    assert "the rollouts of batches 0 to 1 are purged" in capsys.readouterr().err
    shutil.rmtree(settings.checkpoints_dir)
    assert await replay(settings) == 2
    assert "no checkpoint between there and the end is here" in capsys.readouterr().err


async def test_a_fork_of_a_checkpoint_that_is_gone_fails_on_record(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    origin = Origin("run-before", Checkpoint(5, 1, str(settings.data_dir / "gone"), "", ""))
    await ledger_log(bus, RUN).append(
        RunCreated(RUN, script.spec.canonical_json, script.spec.config_hash, origin=origin)
    )
    await script.set_state(RunState.QUEUED)
    assert await train(settings) == 4
    assert await lineages(bus) == [(1, 5)]
    (failed,) = [record for record in await records(bus) if isinstance(record, TrainingFailed)]
    assert "forked from run run-before" in failed.reason and "gone cannot be read" in failed.reason


async def test_a_trainer_that_waits_removes_the_folders_of_deleted_runs_and_of_no_other(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    deleted = await bus.bucket(subjects.DELETED_BUCKET)
    for run_id, keep in (("run-gone", False), ("run-kept", True), ("run-half", False)):
        await deleted.put(run_id, json.dumps({"keep_checkpoints": keep}).encode())
    for run_id in ("run-gone", "run-kept", "run-half", "run-there"):
        for root in (settings.weights_dir, settings.checkpoints_dir):
            (root / run_id).mkdir(parents=True)
        (settings.weights_dir / adapters_run(run_id)).mkdir()
    await bus.publish(subjects.ledger("run-half"), b"its deletion was cut off before the ledger")
    trainer = asyncio.create_task(train(settings))
    async with asyncio.timeout(60):
        while (settings.weights_dir / "run-kept").exists() or (settings.checkpoints_dir / "run-gone").exists():
            await asyncio.sleep(0.1)
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    await script.ledger.append(StateChange(RunState.STOPPED, "there is no more to see"))
    assert await trainer == 0
    assert {folder.name for folder in settings.checkpoints_dir.iterdir()} == {"run-kept", "run-half", "run-there"}
    left = {"run-half", "run-half.adapters", "run-there", "run-there.adapters"}
    assert {folder.name for folder in settings.weights_dir.iterdir()} - {RUN} == left
