"""Which weights a worker's engine serves, and what happens to groups in flight when they change."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.rollout.engine import Engine
from sluice.transport.log import read_stream
from sluice.transport.queues import fetch_rollouts
from sluice.types import Group, PolicyVersion, Rollout, Sampling, Version
from sluice.weights.server import WeightServer
from tests.rollout.conftest import StartWorker
from tests.rollout.stage import EngineServer, Stage, eventually

LONG = 800
"""Tokens that keep the engine busy for some seconds."""


async def long_run(stage: Stage, **changes: Any) -> None:
    await stage.open(
        filter__enable=False,
        rollout__max_response_length=LONG,
        trainer__max_tokens_per_micro_batch=4096,
        **changes,
    )


async def serving(engine: EngineServer, version: str) -> None:
    """Wait until the engine serves `version`."""
    client = Engine(engine.url)

    async def served() -> bool:
        return await client.weight_version() == version

    await eventually(served)
    await client.close()


async def generating(engine: EngineServer) -> None:
    """Wait until the engine is in the middle of a group."""
    async with httpx.AsyncClient(base_url=engine.url) as client:

        async def busy() -> bool:
            lines = (await client.get("/metrics")).text.splitlines()
            return any(line.startswith("sglang:num_running_reqs") and not line.endswith(" 0.0") for line in lines)

        await eventually(busy)
    await asyncio.sleep(0.2)


async def rollouts(stage: Stage, group: Group) -> list[Rollout]:
    return await fetch_rollouts(stage.bus, group.rollouts)


async def test_weights_that_change_in_mid_group_leave_spans_of_two_versions_in_each_rollout(
    stage: Stage, endless_engine: EngineServer, start_worker: StartWorker
) -> None:
    await long_run(stage)
    await stage.publish(0)
    await start_worker(endless_engine.url)
    await stage.offer(stage.prompt(0, sampling=Sampling(LONG)))
    await generating(endless_engine)

    await stage.publish(1, scale=1.01)
    group = (await stage.groups(1))[0]

    for rollout in await rollouts(stage, group):
        assert [span.version for span in rollout.spans] == [PolicyVersion(0, 1), PolicyVersion(1, 1)]
        assert rollout.spans[0].start == 0
        assert rollout.spans[0].end == rollout.spans[1].start
        assert rollout.spans[1].end == len(rollout.token_ids) == LONG
    assert {s.oldest_version for s in group.rollouts} == {PolicyVersion(0, 1)}
    assert {s.newest_version for s in group.rollouts} == {PolicyVersion(1, 1)}


async def test_draining_updates_let_groups_in_flight_finish_under_the_weights_they_began_with(
    stage: Stage, endless_engine: EngineServer, start_worker: StartWorker
) -> None:
    await long_run(stage, weights__update="drain")
    await stage.publish(0)
    await start_worker(endless_engine.url)
    await stage.offer(stage.prompt(0, sampling=Sampling(LONG)))
    await generating(endless_engine)

    await stage.publish(1)
    await stage.offer(stage.prompt(1, min_version=1))
    groups = await stage.groups(2)

    for n, version in ((0, PolicyVersion(0, 1)), (1, PolicyVersion(1, 1))):
        assert {s.oldest_version for s in groups[n].rollouts} == {version}
        assert {s.newest_version for s in groups[n].rollouts} == {version}


async def test_a_prompt_waits_for_the_version_it_asks_for(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open(filter__enable=False)
    await stage.publish(0)
    await start_worker(engine.url)
    await stage.offer(stage.prompt(0, min_version=2), stage.prompt(1))
    assert set(await stage.groups(1)) == {1}

    await stage.publish(2)
    groups = await stage.groups(2)

    assert {s.oldest_version for s in groups[0].rollouts} == {PolicyVersion(2, 1)}


async def test_a_worker_several_versions_behind_applies_only_the_newest(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open()
    for number in range(4):
        await stage.publish(number)
    await start_worker(engine.url)

    await serving(engine, "v3.1")
    assert [event["version"] for event in await events(stage, "weights_applied", 1)] == ["v3.1"]


async def events(stage: Stage, kind: str, count: int) -> list[dict[str, object]]:
    async def stored() -> list[dict[str, object]]:
        subject = f"events.{stage.run}.{kind}"
        found = [json.loads(payload) async for _, payload, _ in read_stream(stage.bus, "EVENTS", subject)]
        return found if len(found) >= count else []

    return list(await eventually(stored))


async def test_a_lower_number_after_a_trainer_rollback_is_ignored_until_the_replay_passes(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open()
    await stage.publish(3)
    await start_worker(engine.url)
    await serving(engine, "v3.1")

    for number in (1, 2, 3):
        await stage.publish(number, lineage=2)
    await stage.offer(stage.prompt(0))
    await stage.groups(1)
    await serving(engine, "v3.1")
    await stage.publish(4, lineage=2)

    await serving(engine, "v4.2")
    applied = [event["version"] for event in await events(stage, "weights_applied", 2)]
    assert applied == ["v3.1", "v4.2"]


async def test_damaged_weights_are_never_served_and_the_worker_stays_on_what_it_has(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open()
    await stage.publish(0)
    await start_worker(engine.url)
    await serving(engine, "v0.1")
    damaged = stage.write_version(1)
    shard = next((stage.weights / stage.run / "v1.1").glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)

    await stage.announce(damaged)
    await stage.offer(stage.prompt(0))
    group = (await stage.groups(1))[0]
    assert {s.newest_version for s in group.rollouts} == {PolicyVersion(0, 1)}
    await stage.publish(2)
    await serving(engine, "v2.1")


async def test_an_engine_that_was_restarted_gets_our_weights_before_it_generates_again(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open(filter__enable=False)
    await stage.publish(2)
    record = await stage.publish(3)
    await start_worker(engine.url)
    await serving(engine, "v3.1")
    shutil.rmtree(stage.weights / stage.run / str(record.version))  # collected meanwhile: v2.1 is the best there is

    engine.restart()
    await stage.offer(*(stage.prompt(n) for n in range(4)))
    groups = await stage.groups(4, 60)

    versions = {s.oldest_version for group in groups.values() for s in group.rollouts}
    assert versions == {PolicyVersion(2, 1)}


async def test_over_grpc_a_worker_reads_no_path_of_the_trainer(
    stage: Stage, engine: EngineServer, start_worker: StartWorker, tmp_path: Path
) -> None:
    await stage.open(filter__enable=False, weights__transport="grpc")
    record = stage.write_version(1)
    far = tmp_path / "somewhere-else"
    stage.weights.rename(far)
    server = await WeightServer.start(far, "127.0.0.1:0")
    await stage.announce(Version(record.version, f"grpc://{server.address}", record.manifest_hash, ""))
    await start_worker(engine.url)
    await stage.offer(stage.prompt(0))

    group = (await stage.groups(1))[0]
    await server.stop()

    assert {s.oldest_version for s in group.rollouts} == {PolicyVersion(1, 1)}
    async with httpx.AsyncClient(base_url=engine.url) as client:
        loaded = Path((await client.get("/model_info")).json()["model_path"])
    assert not loaded.is_relative_to(far)


async def test_no_prompt_is_pulled_before_the_first_version_is_served(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open()
    await stage.offer(stage.prompt(0))
    await start_worker(engine.url)
    await eventually(stage.workers)
    await asyncio.sleep(0.5)
    with pytest.raises(Exception, match="not found"):
        await stage.bus.js.consumer_info("PROMPTS", f"workers-{stage.run}")

    await stage.publish(0)
    await stage.groups(1)
