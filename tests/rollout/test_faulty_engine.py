"""Engines that die, lie about updates, or are poisoned by a prompt: recorded behaviour, real NATS and rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from sluice.types import GroupStatus, PolicyVersion
from tests.rollout.conftest import StartWorker
from tests.rollout.sglang import Answer, Body, SglangServer, sample, slowly
from tests.rollout.stage import RUN, RewardServer, Stage, eventually
from tests.rollout.test_weight_sync import events

POISON = 17


@pytest.fixture
def server() -> Iterator[SglangServer]:
    server = SglangServer()
    yield server
    server.close()


async def test_a_prompt_that_kills_the_engine_runs_alone_from_its_third_attempt_and_ends_as_failed(
    stage: Stage, server: SglangServer, start_worker: StartWorker
) -> None:
    healthy = server.generate
    beside: list[int] = []

    def generate(body: Body) -> Answer | None:
        if POISON not in body["input_ids"]:
            return slowly(healthy, 0.05)(body)
        beside.append(server.in_flight - 1)
        server.weight_version = "default"  # what a restarted server says
        return None

    server.generate = generate
    await stage.open(filter__enable=False, rollout__max_attempts=4)
    await stage.publish(0)
    await start_worker(server.url, groups=4)
    await stage.offer(stage.prompt(0, token_ids=(POISON,)), *(stage.prompt(n) for n in range(1, 9)))

    async def fed() -> bool:
        n = len(await stage.stored()) + 100
        await stage.offer(*(stage.prompt(n + i) for i in range(3)))
        return len(beside) >= 4

    await eventually(fed)
    groups = await eventually(lambda: _with(stage, 0))

    assert groups[0].status == GroupStatus.FAILED
    assert "/generate" in groups[0].error
    assert len(beside) == 4
    assert beside[2:] == [0, 0]
    others = [group for n, group in groups.items() if n]
    assert all(group.status == GroupStatus.SCORED for group in others)
    assert {s.oldest_version for group in others for s in group.rollouts} == {PolicyVersion(0, 1)}


async def _with(stage: Stage, n: int) -> dict[int, object]:
    found = await stage.stored()
    return dict(found) if n in found else {}


async def test_an_update_that_answers_400_though_it_was_applied_is_believed_by_its_version(
    stage: Stage, server: SglangServer, start_worker: StartWorker
) -> None:
    server.update = server.update_but_say_no
    await stage.open()
    await stage.publish(0)
    await start_worker(server.url)
    await stage.offer(stage.prompt(0))
    await stage.groups(1)
    assert len(server.bodies("/update_weights_from_disk")) == 1


async def test_an_update_that_was_refused_is_loaded_again_and_nothing_is_generated_before_it_succeeds(
    stage: Stage, server: SglangServer, start_worker: StartWorker
) -> None:
    server.update = server.refuse_update
    await stage.open()
    await stage.publish(0)
    await start_worker(server.url)
    await stage.offer(stage.prompt(0))
    await eventually(lambda: len(server.bodies("/update_weights_from_disk")) >= 4)
    assert server.bodies("/generate") == []
    assert {"rid": "", "abort_all": True} in server.bodies("/abort_request")
    said = str((await events(stage, "alarm", 1))[0]["error"])
    assert "Failed to get weights iterator." in said and "model.path = " in said, "at once, and what is to be mended"

    server.update = server.apply_update
    group = (await stage.groups(1))[0]
    assert {s.oldest_version for s in group.rollouts} == {PolicyVersion(0, 1)}


async def test_a_server_that_will_not_flush_after_a_clean_update_is_tolerated(
    stage: Stage, server: SglangServer, start_worker: StartWorker
) -> None:
    server.flush_status = 400
    await stage.open()
    await stage.publish(0)
    await start_worker(server.url)
    await stage.offer(stage.prompt(0))
    await stage.groups(1)
    assert server.bodies("/abort_request") == []


async def test_an_aborted_sample_is_no_rollout_and_does_not_count_as_an_attempt(
    stage: Stage, server: SglangServer, start_worker: StartWorker
) -> None:
    healthy, aborts = server.generate, iter(range(3))

    def generate(body: Body) -> Answer | None:
        if next(aborts, None) is None:
            return healthy(body)
        cut = sample([7], [("v0.1", 0, 1)], {"type": "abort", "message": "Aborted"})
        return 200, [cut for _ in range(body["sampling_params"]["n"])]

    server.generate = generate
    await stage.open(filter__enable=False, rollout__max_attempts=1)
    await stage.publish(0)
    await start_worker(server.url)
    await stage.offer(stage.prompt(0))
    group = (await stage.groups(1))[0]
    assert group.status == GroupStatus.SCORED
    assert {s.length for s in group.rollouts} == {2}


async def test_an_engine_that_is_slow_loses_the_prompt_but_slowness_never_fails_it(
    stage: Stage, server: SglangServer, start_worker: StartWorker
) -> None:
    healthy, slow = server.generate, iter(range(2))

    def generate(body: Body) -> Answer | None:
        return healthy(body) if next(slow, None) is None else slowly(healthy, 1.0)(body)

    server.generate = generate
    await stage.open(rollout__max_attempts=1, deadlines__generate_seconds=0.3)
    await stage.publish(0)
    await start_worker(server.url)
    await stage.offer(stage.prompt(0))
    assert (await stage.groups(1))[0].status == GroupStatus.SCORED
    assert len(server.bodies("/generate")) == 3


async def test_tokens_older_than_the_prompt_may_see_are_never_stored(
    stage: Stage, server: SglangServer, start_worker: StartWorker
) -> None:
    healthy, lies = server.generate, iter(range(1))

    def generate(body: Body) -> Answer | None:
        if next(lies, None) is None:
            return healthy(body)
        old = sample([7], [("v0.1", 0, 1)], {"type": "stop", "matched": 7})
        return 200, [old for _ in range(body["sampling_params"]["n"])]

    server.generate = generate
    await stage.open(filter__enable=False)
    await stage.publish(3)
    await start_worker(server.url)
    await stage.offer(stage.prompt(0, min_version=3))
    group = (await stage.groups(1))[0]
    assert {s.oldest_version for s in group.rollouts} == {PolicyVersion(3, 1)}
    assert len(server.bodies("/update_weights_from_disk")) == 2  # in doubt, it loads again


def repeated() -> list[float]:
    """Score calls and deliveries that were made again."""
    names = ("sluice_rollout_reward_retries_total", "sluice_rollout_redeliveries_total")
    return [REGISTRY.get_sample_value(name, {"run": RUN}) or 0.0 for name in names]


async def test_groups_wait_for_a_reward_service_that_is_away_and_no_outcome_is_made_up(
    stage: Stage, server: SglangServer, start_worker: StartWorker, reward: RewardServer
) -> None:
    await stage.open(reward__deadline_seconds=0.5)
    await stage.publish(0)
    before = repeated()
    stop = await start_worker(server.url, "blind", reward_address="127.0.0.1:9", drain_seconds=0.0)
    await stage.offer(stage.prompt(0))
    await eventually(lambda: len(server.bodies("/generate")) >= 2)
    assert await stage.stored() == {}
    assert all(now > then for now, then in zip(repeated(), before, strict=True))
    stop.set()
    await asyncio.sleep(0.1)

    await start_worker(server.url, "seeing")
    assert (await stage.groups(1))[0].worker == "seeing"
