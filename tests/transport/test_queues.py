"""PROMPTS, ROLLOUTS and GROUPS against a real server: one commit a group, and hashes that hold."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sluice.errors import WireError
from sluice.packed import LogProbs, TokenIds
from sluice.transport.archive import Archive, archive_groups
from sluice.transport.groups import UnreadableGroup, stored_groups
from sluice.transport.nats import Bus
from sluice.transport.queues import (
    Delivery,
    PromptQueue,
    Stored,
    fetch_rollouts,
    pending_prompts,
    publish_prompt,
    queue_depth,
    read_groups,
    store_group,
    store_rollouts,
)
from sluice.transport.streams import StreamLimits
from sluice.types import (
    FinishReason,
    Group,
    GroupStatus,
    PolicyVersion,
    Prompt,
    Rollout,
    Sampling,
    VersionSpan,
)
from sluice.wire import subjects
from tests.servers import NatsServer


def prompt(n: int, run_id: str = "run") -> Prompt:
    return Prompt(run_id, n, n, 0, (1, 2, 3), "1+2=", "3", "exact", "{}", 2, Sampling(8), seed=n, min_version=0)


def rollout(n: int, attempt: str, i: int, tokens: int = 4) -> Rollout:
    span = VersionSpan(PolicyVersion(0, 1), 0, tokens)
    ids, logprobs = TokenIds(range(tokens)), LogProbs([-0.5] * tokens)
    return Rollout("run", n, attempt, i, TokenIds((1, 2)), ids, logprobs, FinishReason.STOP, (span,) if tokens else ())


async def store(bus: Bus, one: Rollout) -> Stored:
    return (await store_rollouts(bus, [one]))[0]


async def fetch(bus: Bus, stored: Stored) -> Rollout:
    return (await fetch_rollouts(bus, [stored]))[0]


def group(n: int, attempt: str) -> Group:
    return Group("run", n, attempt, GroupStatus.FAILED, (), "worker", "engine", 0, 1.0, 0.1)


async def test_the_depth_of_the_queue_counts_what_waits_and_what_is_in_workers_hands(bus: Bus) -> None:
    assert await queue_depth(bus, "run") == (0, 0)
    for n in range(3):
        await publish_prompt(bus, prompt(n))
    worker = await PromptQueue.join(bus, "run")
    assert await queue_depth(bus, "run") == (3, 0)
    (delivery,) = await worker.pull(1)
    assert not delivery.redelivered
    assert await queue_depth(bus, "run") == (2, 1)
    await delivery.hand_back()
    later: list[Delivery] = []
    while len(later) < 3:
        later += await worker.pull(3)
    assert [delivery.prompt for delivery in later if delivery.redelivered] == [prompt(0)]


async def test_a_prompt_goes_to_one_worker_and_is_gone_when_acked(bus: Bus) -> None:
    await publish_prompt(bus, prompt(0))
    one, two = await PromptQueue.join(bus, "run"), await PromptQueue.join(bus, "run")
    (delivery,) = await one.pull(4)
    assert delivery.prompt == prompt(0)
    assert await two.pull(4, wait_seconds=0.2) == []
    await delivery.ack()
    async with asyncio.timeout(10):
        while await pending_prompts(bus, "run"):
            await asyncio.sleep(0.01)


async def test_a_prompt_that_is_handed_back_goes_to_another_worker(bus: Bus) -> None:
    await publish_prompt(bus, prompt(0))
    one, two = await PromptQueue.join(bus, "run"), await PromptQueue.join(bus, "run")
    await (await one.pull(1))[0].hand_back()
    (again,) = await two.pull(1)
    assert again.prompt.n == 0


async def test_workers_of_one_run_never_see_prompts_of_another(bus: Bus) -> None:
    await publish_prompt(bus, prompt(0, "one"))
    await publish_prompt(bus, prompt(0, "two"))
    queue = await PromptQueue.join(bus, "two")
    assert [delivery.prompt.run_id for delivery in await queue.pull(8, wait_seconds=0.5)] == ["two"]


async def test_the_first_group_of_an_issue_number_is_the_group_whoever_else_tries(bus: Bus) -> None:
    won = await asyncio.gather(*(store_group(bus, group(7, f"attempt{i}")) for i in range(6)))
    assert sum(won) == 1
    ((_, stored),) = await read_groups(bus, "run", 1)
    assert stored.attempt == f"attempt{won.index(True)}"


async def test_storing_the_same_attempt_again_after_a_lost_answer_says_that_it_won(bus: Bus) -> None:
    assert await store_group(bus, group(7, "a"))
    assert await store_group(bus, group(7, "a"))
    assert not await store_group(bus, group(7, "b"))


async def test_a_rollout_over_a_mebibyte_is_split_and_comes_back_whole(bus: Bus) -> None:
    # Distinct log-probs, so that compression cannot make it small.
    tokens = 400_000
    span = VersionSpan(PolicyVersion(0, 1), 0, tokens)
    ids = TokenIds(i % 50_000 for i in range(tokens))
    logprobs = LogProbs(-(((i * 2654435761) % 2**24) / 2**24) for i in range(tokens))
    big = Rollout("run", 0, "a", 0, TokenIds([1]), ids, logprobs, FinishReason.LENGTH, (span,))
    stored = await store(bus, big)
    assert len(stored.sequences) > 1
    assert (await fetch(bus, stored)) == big


async def test_rollouts_of_two_attempts_never_answer_for_each_other(bus: Bus) -> None:
    mine, other = await store(bus, rollout(0, "a", 0)), await store(bus, rollout(0, "b", 0))
    assert mine.sequences != other.sequences
    with pytest.raises(WireError, match="content hash"):
        await fetch(bus, replace(mine, sequences=other.sequences))


async def test_many_rollouts_come_back_in_the_order_asked_for(bus: Bus) -> None:
    stored = await store_rollouts(bus, [rollout(n, "a", 0, tokens=n) for n in range(20)])
    assert [r.n for r in await fetch_rollouts(bus, stored[::-1])] == list(reversed(range(20)))


async def test_groups_of_long_rollouts_come_back_as_they_were(bus: Bus) -> None:
    # Long enough to be encoded and decoded beside the event loop.
    long = [rollout(0, "a", i, tokens=20_000 + i) for i in range(20)]
    stored = await store_rollouts(bus, long)
    assert await fetch_rollouts(bus, stored) == long


async def test_the_rollouts_of_an_attempt_share_a_message_and_each_comes_back_alone(bus: Bus) -> None:
    rollouts = [rollout(0, "a", i, tokens=i) for i in range(8)]
    stored = await store_rollouts(bus, rollouts)
    assert len({s.sequences for s in stored}) == 1
    assert [await fetch(bus, one) for one in stored] == rollouts
    assert await store_rollouts(bus, rollouts) == stored, "stored again, they are what is there already"


async def test_a_rollout_is_not_taken_for_its_neighbour(bus: Bus) -> None:
    mine, other = await store_rollouts(bus, [rollout(0, "a", i) for i in range(2)])
    for wrong in (replace(mine, offset=other.offset), replace(mine, nbytes=mine.nbytes - 1), replace(mine, nbytes=0)):
        with pytest.raises(WireError, match="content hash"):
            await fetch(bus, wrong)
    with pytest.raises(WireError, match="lies at bytes"):
        await fetch(bus, replace(other, nbytes=other.nbytes + 1))


async def test_a_purged_rollout_is_named_as_gone(bus: Bus) -> None:
    stored = await store(bus, rollout(0, "a", 0))
    await bus.js.purge_stream(subjects.ROLLOUTS, subject=subjects.rollouts("run"))
    with pytest.raises(WireError, match="purged"):
        await fetch(bus, stored)


async def test_a_full_stream_refuses_the_publisher_and_says_which_knob(bus: Bus) -> None:
    from sluice.errors import TransientError

    info = await bus.js.stream_info(subjects.ROLLOUTS)
    info.config.max_bytes = 4096
    await bus.js.update_stream(info.config)
    bus.deadline_seconds = 0.5
    with pytest.raises(TransientError, match="stream's size"):
        for i in range(100):
            await store(bus, rollout(i, "a", 0, tokens=200))


async def test_stored_messages_survive_kill_9_of_the_server(bus: Bus, nats_server: NatsServer) -> None:
    stored = await store(bus, rollout(0, "a", 0))
    await store_group(bus, group(0, "a"))
    await publish_prompt(bus, prompt(1))
    nats_server.kill()
    nats_server.start()
    assert (await fetch(bus, stored)).attempt == "a"
    assert len(await read_groups(bus, "run", 1)) == 1
    assert await pending_prompts(bus, "run") == {1}


async def test_a_prompt_that_nobody_can_read_leaves_the_queue_counted_and_takes_no_other_with_it(bus: Bus) -> None:
    await bus.publish(subjects.prompt("run", 0), b"\xff not a prompt")
    await publish_prompt(bus, prompt(1))
    unreadable: list[int] = []
    queue = await PromptQueue.join(bus, "run", lambda: unreadable.append(1))
    numbers = [delivery.prompt.n for _ in range(2) for delivery in await queue.pull(4, wait_seconds=0.5)]
    assert numbers == [1] and unreadable == [1]
    assert await pending_prompts(bus, "run") == {1}


async def test_a_group_that_nobody_can_read_takes_no_other_with_it_also_into_the_archive(bus: Bus) -> None:
    await store_group(bus, group(0, "a"))
    damaged = await bus.publish(subjects.group("run", 1), b"\xff not a group")
    await store_group(bus, group(2, "a"))
    found = await stored_groups(bus, "run", 1)
    assert [(stored.n, isinstance(stored, UnreadableGroup)) for _, stored in found] == [
        (0, False),
        (1, True),
        (2, False),
    ]
    assert f"GROUPS sequence {damaged}: Group of 13 bytes" in getattr(found[1][1], "error", "")
    with pytest.raises(WireError, match="Group of 13 bytes"):
        await read_groups(bus, "run", 1)
    await archive_groups(bus, "run", damaged + 1)
    archive = Archive(bus, "run")
    assert [await archive.group(n) for n in range(3)] == [group(0, "a"), None, group(2, "a")]


async def test_the_coordinator_brings_streams_that_others_made_to_the_deployments_limits(bus: Bus) -> None:
    await bus.ensure_streams(StreamLimits(rollouts_bytes=50 << 20))
    await bus.ensure_streams()
    assert (await bus.js.stream_info(subjects.ROLLOUTS)).config.max_bytes == 50 << 20
