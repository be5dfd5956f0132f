"""A trainer that is cut off from NATS at the worst moments, or says and hears things twice, trains each batch once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.trainer.config import TrainerSettings
from sluice.transport.nats import Bus
from sluice.types import RunState
from sluice.wire import subjects
from tests.faults.proxy import Delivery, Do, Proxy
from tests.trainer.running import chain_by_hand, checkpoints, lineages, train, until, versions
from tests.trainer.script import RUN, Script, make_spec

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.usefixtures("trainer_here"),
]
CUT_SECONDS = 2.5
"""Longer than a request waits before it is asked again."""
FETCH, RECORD = "$JS.API.DIRECT.GET.ROLLOUTS*", subjects.trainer(RUN)
PURGE, LEDGER = "$JS.API.STREAM.PURGE.ROLLOUTS", "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*"


@pytest.fixture
def settings(proxy: Proxy, tmp_path: Path) -> TrainerSettings:
    """A trainer behind the proxy."""
    return TrainerSettings(nats_url=proxy.url, nats_deadline_seconds=10, data_dir=tmp_path / "data", lease_seconds=1)


async def begin(bus: Bus, model: Path) -> Script:
    script = Script(bus, make_spec(model, checkpoint={"interval": 1}))
    await script.create()
    return script


async def first_version(bus: Bus) -> bool:
    return "v0.1" in await versions(bus)


async def assert_trained_once(bus: Bus, script: Script, newest: list[str]) -> None:
    """Every batch is in the newest lineage once, in order."""
    found = await versions(bus)
    assert list(found)[-len(newest) :] == newest
    assert [found[name].chain for name in newest] == [
        chain_by_hand(script, int(name[1:].partition(".")[0])) for name in newest
    ]


async def test_a_partition_in_mid_fetch_in_mid_publish_and_around_a_checkpoint_costs_a_trainer_time_and_nothing_else(
    bus: Bus, proxy: Proxy, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = await begin(bus, tiny_model)
    trainer = asyncio.create_task(train(settings))
    await until(lambda: first_version(bus))
    trap = proxy.catch(FETCH, on_catch=proxy.part)
    await script.add_batch()
    below_all_others = await script.floors()
    for following in (RECORD, RECORD, None):  # the version, then its checkpoint
        await trap.wait()
        await asyncio.sleep(CUT_SECONDS)
        caught, trap = trap, proxy.catch(following, on_catch=proxy.part) if following else trap
        proxy.heal()
        caught.release()  # what was on the wire arrives, and is asked again after it
    trap = proxy.catch(PURGE, on_catch=proxy.part)
    await script.add_batch(floors=below_all_others)
    await script.add_batch()
    await trap.wait()
    await asyncio.sleep(CUT_SECONDS)
    proxy.heal()
    trap.release()
    await script.set_state(RunState.STOPPING, record=True)
    assert await trainer == 0
    await assert_trained_once(bus, script, ["v0.1", "v1.1", "v2.1", "v3.1"])
    assert [(c.k, c.lineage) for c in await checkpoints(bus)] == [(1, 1), (2, 1), (3, 1)]


async def test_a_version_that_a_trainer_cut_off_for_good_had_sent_is_refused_after_its_successor_has_claimed(
    bus: Bus, nats_url: str, proxy: Proxy, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = await begin(bus, tiny_model)
    trainer = asyncio.create_task(train(settings.model_copy(update={"nats_deadline_seconds": 2.0})))
    await until(lambda: first_version(bus))
    last_words = proxy.catch(RECORD, on_catch=proxy.part)
    await script.add_batch()
    await last_words.wait()
    assert await trainer == 1, "its deadline has passed"
    successor = asyncio.create_task(train(settings.model_copy(update={"nats_url": nats_url})))

    async def claimed() -> bool:
        return len(await lineages(bus)) == 2

    await until(claimed)
    proxy.heal()
    last_words.release()
    await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await successor == 0
    assert list(await versions(bus)) == ["v0.1", "v0.2", "v1.2", "v2.2"]
    await assert_trained_once(bus, script, ["v0.2", "v1.2", "v2.2"])


async def test_a_trainer_that_says_everything_twice_and_hears_it_twice_or_in_disorder_trains_each_batch_once(
    bus: Bus, proxy: Proxy, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = await begin(bus, tiny_model)
    for subject in (LEDGER, RECORD, FETCH):
        for _ in range(4):
            proxy.catch(subject, Do.TWICE)
    proxy.catch(RECORD, Do.LOSE_ANSWER)
    heard = proxy.disorder(subjects.ledger(RUN), RECORD, choices=(Delivery.LATE, Delivery.LATE, Delivery.TWICE))
    for _ in range(3):
        await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0
    await assert_trained_once(bus, script, ["v0.1", "v1.1", "v2.1", "v3.1"])
    assert await lineages(bus) == [(1, 0)]
    assert heard.counts[Delivery.LATE] and heard.counts[Delivery.TWICE]
