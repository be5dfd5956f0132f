"""What NATS delivers comes late, twice, or never: it is read in order and without gaps, and trained once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluice.transport import log
from sluice.transport.log import follow_stream
from sluice.transport.nats import Bus
from sluice.wire import subjects
from tests.coordinator.stage import wait_for_state
from tests.faults.conftest import StartCoordinator
from tests.faults.proxy import Delivery, Proxy
from tests.faults.test_purge import assert_clean, begin, settings_of
from tests.faults.work import PATIENCE
from tests.trainer.running import train

MESSAGES = 200


@pytest.fixture
async def behind(proxy: Proxy) -> AsyncIterator[Bus]:
    """A connection through the proxy."""
    bus = await Bus.connect(proxy.url, "behind", deadline_seconds=10)
    yield bus
    await bus.close()


async def follow(bus: Bus, count: int) -> list[bytes]:
    """The first `count` messages of a run's ROLLOUTS."""
    found = list[bytes]()
    async with (
        asyncio.timeout(PATIENCE),
        contextlib.aclosing(follow_stream(bus, subjects.ROLLOUTS, subjects.rollouts("r"))) as messages,
    ):
        async for _, payload, _ in messages:
            found.append(payload)
            if len(found) == count:
                break
    return found


async def test_a_stream_is_read_in_order_and_without_gaps_whatever_is_late_doubled_or_lost_on_the_way(
    bus: Bus, proxy: Proxy, behind: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "QUIET_SECONDS", 0.2)
    # One in ten is late, one in ten doubled, one in ten lost.
    common = (Delivery.IN_TIME,) * 7
    chosen = proxy.disorder("rollouts.r", choices=(*common, Delivery.LATE, Delivery.TWICE, Delivery.LOST))
    reading = asyncio.create_task(follow(behind, MESSAGES))
    for i in range(MESSAGES):
        await bus.publish(subjects.rollouts("r"), str(i).encode())
    assert await reading == [str(i).encode() for i in range(MESSAGES)]
    assert set(chosen.counts) == set(Delivery)


async def test_a_last_message_that_was_lost_on_the_way_is_missed_and_fetched_again(
    bus: Bus, proxy: Proxy, behind: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "QUIET_SECONDS", 0.2)
    await bus.publish(subjects.rollouts("r"), b"only one")
    proxy.disorder("rollouts.r", choices=(Delivery.LOST,))
    reading = asyncio.create_task(follow(behind, 1))
    await asyncio.sleep(0.5)
    assert not reading.done()
    proxy.disorder()
    assert await reading == [b"only one"]


@pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")
@pytest.mark.usefixtures("trainer_here")
async def test_records_and_groups_that_reach_coordinator_and_trainer_late_and_twice_train_each_batch_once(
    bus: Bus, proxy: Proxy, start_coordinator: StartCoordinator, nats_url: str, tmp_path: Path
) -> None:
    chosen = proxy.disorder("ledger.*", "trainer.*", "groups.*.*", choices=(Delivery.LATE, Delivery.TWICE))
    coordinator = start_coordinator(proxy.url)
    run = await begin(coordinator, bus, steps=6)
    trainer = asyncio.create_task(train(settings_of(proxy.url, tmp_path)))
    for n in range(0, 12, 4):
        await run.both(n, n + 1, n + 2, n + 3)  # two batches, one right after the other
    await wait_for_state(coordinator, run.id, "succeeded", PATIENCE)
    assert await trainer == 0
    assert await run.batches() == [[n, n + 1] for n in range(0, 12, 2)]
    await assert_clean(nats_url, run, groups=12)
    assert min(chosen.counts.values()) >= 5
