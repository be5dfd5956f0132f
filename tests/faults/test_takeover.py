"""One coordinator dies or falls silent between two messages and another takes over: the violations that this invites.

Each is a trace of the protocol model, played on real coordinators: capacity inflated (6), a prompt or a record that
lands after its sender's death (7), two writers (8), an announcement that expired (10), an abandoned group that comes
back (12).
"""

from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import FencedError
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.transport.queues import pending_prompts
from sluice.types import Claim, DropReason, Floors, Issue
from sluice.wire import subjects
from sluice.wire.codec import encode_prompt
from tests.coordinator.stage import Coordinator, Stage, create, spec, wait_for_state
from tests.faults.conftest import StartCoordinator
from tests.faults.proxy import Proxy
from tests.faults.work import Hands, batches, claims, dropped, finish, issued, trained, until

CAPACITY = 8
"""(η + 1) · B of the run that these tests make, at version 0."""


async def staffed(coordinator: Coordinator, bus: Bus, **changes: Any) -> Stage:
    """A run that begins; the test is its trainer and its worker."""
    view = await create(coordinator, spec(**changes))
    stage = Stage(bus, view["id"], keep=1.0)
    await stage.join()
    return stage


@pytest.mark.parametrize("about_to_read", ["PROMPTS", "GROUPS"])
async def test_groups_stored_while_a_successor_rebuilds_never_make_it_issue_more(
    about_to_read: str, bus: Bus, proxy: Proxy, start_coordinator: StartCoordinator, nats_url: str
) -> None:
    first = start_coordinator(nats_url)
    stage = await staffed(first, bus)
    hands = Hands(stage)
    await hands.hold(*range(CAPACITY))
    first.kill()
    between = proxy.catch({"PROMPTS": "$JS.API.STREAM.INFO.PROMPTS", "GROUPS": "$JS.API.*GROUPS*"}[about_to_read])
    start_coordinator(proxy.url)
    await between.wait()
    await hands.store(5, 2, 7)
    between.release()
    await hands.store(0)
    await batches(stage, 1)
    assert await issued(stage) == CAPACITY

    async def acked() -> bool:
        return await pending_prompts(bus, stage.run_id) == {1, 3, 4, 6}

    await until(acked, "of those that are stored no prompt is left")
    assert sorted(await trained(stage)) == [0, 2, 5, 7]


async def test_prompts_that_land_after_their_sender_died_cost_work_and_nothing_else(
    bus: Bus, proxy: Proxy, start_coordinator: StartCoordinator, nats_url: str
) -> None:
    on_the_wire = proxy.catch("prompts.*.3")
    first = start_coordinator(proxy.url)
    stage = await staffed(first, bus)
    await on_the_wire.wait()
    assert await issued(stage) == CAPACITY, "ISSUE is stored before any prompt"
    first.kill()
    second = start_coordinator(nats_url)
    await claims(stage, 2)

    async def all_offered() -> bool:
        return len(await pending_prompts(bus, stage.run_id)) == CAPACITY

    await until(all_offered, "the successor publishes what was not")
    on_the_wire.release()
    prompts = {prompt.n: prompt for prompt in await stage.work()}
    for prompt in prompts.values():  # and once more, when nobody remembers their message ids
        await bus.publish(subjects.prompt(stage.run_id, prompt.n), encode_prompt(prompt))
    await finish(stage, 4)
    await wait_for_state(second, stage.run_id, "succeeded")
    assert len(await trained(stage)) == 16


async def test_a_batch_of_a_silent_coordinator_that_lands_after_its_successors_is_refused(
    bus: Bus, proxy: Proxy, start_coordinator: StartCoordinator, nats_url: str
) -> None:
    silent = start_coordinator(proxy.url)
    stage = await staffed(silent, bus)
    hands = Hands(stage)
    await hands.store(4, 1, 6)
    batch = proxy.catch(subjects.ledger(stage.run_id))
    await hands.store(2)
    await batch.wait()
    second = start_coordinator(nats_url)
    await claims(stage, 2)
    await batches(stage, 1)
    batch.release()  # at this moment its successor's batch, the same, is the last record
    await hands.store(*hands.held)
    await finish(stage, 4)
    await wait_for_state(second, stage.run_id, "succeeded")
    assert sorted((await trained(stage))[:4]) == [1, 2, 4, 6]
    assert sum(isinstance(record, Claim) for record in await stage.ledger()) == 2


async def test_a_record_equal_to_ours_that_another_holder_wrote_is_not_ours(bus: Bus) -> None:
    record = Issue(0, 8, 0, Floors(0, 0))
    old, new = ledger_log(bus, "r"), ledger_log(bus, "r")
    await old.append(Claim("old"))
    await new.read()
    await new.append(Claim("new"))
    await new.append(record)
    with pytest.raises(FencedError):
        await old.append(record)


async def test_a_version_announced_while_no_coordinator_lived_is_heard_although_its_event_expired(
    bus: Bus, start_coordinator: StartCoordinator, nats_url: str
) -> None:
    first = start_coordinator(nats_url)
    stage = await staffed(first, bus)
    await Hands(stage).store(0, 1, 2, 3)
    await batches(stage, 1)
    first.kill()
    await stage.train()
    await bus.js.purge_stream(subjects.EVENTS)
    start_coordinator(nats_url)

    async def goes_on() -> bool:
        return await issued(stage) == CAPACITY + 4

    await until(goes_on, "version 1 lets four more groups be issued")


async def test_a_straggler_that_was_given_up_stays_given_up_under_the_next_coordinator(
    bus: Bus, start_coordinator: StartCoordinator, nats_url: str
) -> None:
    first = start_coordinator(nats_url)
    stage = await staffed(first, bus, asynchrony__stragglers="drop")
    hands = Hands(stage)
    await hands.store(0, 1, 2, 3)
    await batches(stage, 1)
    await stage.train()
    await hands.hold(*range(4, 12))
    await hands.store(8, 4, 5, 6)  # 7 must be in batch 1 and is not there: the batch goes without it
    await batches(stage, 2)
    first.kill()
    (drop,) = await dropped(stage)
    assert (drop.groups, drop.reason) == ((7,), DropReason.STRAGGLER)
    second = start_coordinator(nats_url)
    await claims(stage, 2)
    await hands.store(7)  # far too late
    await hands.store(9, 10, 11)
    await finish(stage, 4)
    await wait_for_state(second, stage.run_id, "succeeded")
    assert 7 not in await trained(stage)
    assert len(await trained(stage)) == 16
