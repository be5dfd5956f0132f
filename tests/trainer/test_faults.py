"""What a trainer does when it is killed, overtaken, or given something that cannot be trained."""

from __future__ import annotations

import asyncio
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from services.trainer.claim import Claim, check_claim
from services.trainer.config import TrainerSettings
from sluice.errors import ConfigError
from sluice.transport.log import trainer_log
from sluice.transport.nats import Bus
from sluice.types import Lineage, RunState, TrainingFailed
from sluice.wire import subjects
from tests.servers import NatsServer
from tests.trainer.running import checkpoints, events, lineages, tensors, train, trainer_process, until, versions
from tests.trainer.script import RUN, Script, make_spec

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.usefixtures("one_rank"),
]


async def test_a_trainer_killed_with_9_replays_the_same_batches_to_the_same_bits(
    bus: Bus, tiny_model: Path, settings: TrainerSettings, tmp_path: Path
) -> None:
    schedule = {"lr": 1e-3, "lr_warmup_steps": 3, "lr_scheduler_type": "cosine"}
    script = Script(bus, make_spec(tiny_model, checkpoint={"interval": 2}, optim=schedule))
    await script.create()
    for _ in range(3):
        await script.add_batch()

    async def past_the_checkpoint() -> bool:
        return "v3.1" in await versions(bus) and [c.k for c in await checkpoints(bus)] == [2]

    with trainer_process(settings):
        await until(past_the_checkpoint)
    await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0

    assert await lineages(bus) == [(1, 0), (2, 2)]
    fallen = await versions(bus)
    assert list(fallen) == ["v0.1", "v1.1", "v2.1", "v3.1", "v2.2", "v3.2", "v4.2"]
    assert fallen["v3.1"].chain == fallen["v3.2"].chain
    weights = await tensors(fallen["v4.2"], tmp_path)

    # the same four batches by a trainer that nothing happens to
    shutil.rmtree(settings.data_dir)
    await bus.js.purge_stream(subjects.TRAINER)
    assert await train(settings) == 0
    straight = (await versions(bus))["v4.1"]
    assert straight.chain == fallen["v4.2"].chain
    assert await tensors(straight, tmp_path) == weights


async def test_a_nats_server_killed_with_9_under_a_trainer_costs_a_pause(
    bus: Bus, nats_server: NatsServer, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    await script.add_batch()
    trainer = asyncio.create_task(train(settings))

    async def first_version() -> bool:
        return "v1.1" in await versions(bus)

    await until(first_version)
    nats_server.kill()
    nats_server.start()
    await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await trainer == 0
    assert list(await versions(bus)) == ["v0.1", "v1.1", "v2.1"]


async def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model, checkpoint={"interval": 1}))
    await script.create()
    await script.add_batch()
    await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0
    shard = next((settings.checkpoints_dir / RUN / "2.1" / "engine").glob("*optim_states.pt"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert await train(settings) == 0
    assert await lineages(bus) == [(1, 0), (2, 1)]
    assert [(c.k, c.lineage) for c in await checkpoints(bus)] == [(1, 1), (2, 1), (2, 2)]


async def test_a_trainer_that_another_one_has_overtaken_ends_with_code_3(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    trainer = asyncio.create_task(train(settings))

    async def started() -> bool:
        return "v0.1" in await versions(bus)

    await until(started)
    other = trainer_log(bus, RUN)
    await other.read()
    await other.append(Lineage(2, "another trainer", 0))
    await script.add_batch()
    assert await trainer == 3
    assert list(await versions(bus)) == ["v0.1"]


async def test_a_loss_that_is_not_finite_ends_with_code_4_and_an_alarm_before_anything_is_published(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    await script.add_batch(behaviour=math.nan)
    assert await train(settings) == 4
    assert list(await versions(bus)) == ["v0.1"]
    assert await checkpoints(bus) == []
    (alarm,) = await events(bus, "alarm")
    assert alarm["alarm"] == "diverged"
    assert "[0, 1]" in alarm["error"]


async def test_a_rollout_that_is_not_the_one_the_group_was_scored_on_is_never_trained(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    await script.add_batch(swap=True)
    assert await train(settings) == 4
    assert list(await versions(bus)) == ["v0.1"]
    (alarm,) = await events(bus, "alarm")
    assert "batch 0: rollout at" in alarm["error"] and "content hash" in alarm["error"]


async def test_a_run_that_asks_for_other_ranks_ends_and_leaves_the_trainer_to_the_next(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model, trainer={"total_steps": 1, "sequence_parallel": 2}))
    await script.create()
    for lineage in (1, 2):
        assert await train(settings) == 4
        failed = await trainer_log(bus, RUN).read()
        assert failed[-1].record == TrainingFailed(
            lineage,
            "trainer.sequence_parallel = 2 must divide the number of trainer ranks, WORLD_SIZE=1 (`sluice up "
            f"--trainer-ranks`); start 2 or a multiple for run {RUN}",
        )
    assert await versions(bus) == {}


def test_code_of_a_model_runs_only_where_the_deployment_allows_it(tiny_model: Path) -> None:
    spec = make_spec(tiny_model, model={"trust_remote_code": True})
    claim = Claim(RUN, spec, spec.config_hash, 1, None)
    with pytest.raises(ConfigError, match="SLUICE_ALLOW_REMOTE_CODE"):
        check_claim(claim, allow_remote_code=False, world_size=1)
    check_claim(replace(claim, lineage=2), allow_remote_code=True, world_size=1)
