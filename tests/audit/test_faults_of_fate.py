"""One fault planted into an honest run: groups lost, trained twice, or settled twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sluice.audit import Fault, audit
from sluice.transport.nats import Bus
from sluice.types import (
    Checkpoint,
    Drop,
    DropReason,
    Floors,
    RunState,
    StateChange,
    Version,
)
from sluice.wire import subjects
from sluice.wire.codec import encode_group
from sluice.wire.records import encode_ledger
from sluice.wire.v1.rollouts_pb2 import Group
from tests.audit.planting import audited, batch_at, edit_batch, kinds, played, rechain
from tests.audit.world import World, advance, make_spec


async def test_a_deleted_group_that_was_kept_is_lost(bus: Bus) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    n = next(iter(world.queue.in_flight_groups()))
    world.work(n, correct=[True, False])
    world.coordinate()
    world.record(StateChange(RunState.PAUSED, "paused by a person"))
    assert n in world.queue.live
    del world.groups[world.queue.live[n].groups_sequence]
    report = await audited(bus, world)
    assert kinds(report) == {Fault.LOST}
    assert report.lost == 1
    assert f"groups {n} are live" in report.findings[0].detail


async def test_a_prompt_that_vanished_from_a_running_run_is_lost(bus: Bus) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    world.record(StateChange(RunState.PAUSED, "paused by a person"))
    world.prompts.discard(next(iter(world.queue.in_flight_groups())))
    assert kinds(await audited(bus, world)) == {Fault.LOST}


async def test_a_prompt_that_its_coordinator_says_it_has_not_offered_yet_is_not_lost_and_any_before_it_is(
    bus: Bus,
) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    one, other = list(world.queue.in_flight_groups())[-2:]
    world.record(StateChange(RunState.PAUSED, "paused while PROMPTS was full", json.dumps({"unoffered": other})))
    world.prompts -= {one, other}
    report = await audited(bus, world)
    assert (kinds(report), report.lost) == ({Fault.LOST}, 1)


async def test_a_group_that_cannot_be_read_is_counted_and_not_lost(bus: Bus) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    world.record(StateChange(RunState.PAUSED, "paused by a person"))
    n = next(iter(world.queue.in_flight_groups()))
    world.prompts.discard(n)
    await world.write(bus)
    newer = Group(format=3, run_id="run-a", n=n, status="scored")
    await bus.publish(subjects.group("run-a", n), newer.SerializeToString())
    report = await audit(bus, "run-a")
    assert (report.findings, report.unreadable_groups, report.lost) == ((), 1, 0), "it is still to be dropped"
    await bus.publish(subjects.ledger("run-a"), encode_ledger(Drop((n,), DropReason.FAILED, "of format 3")))
    report = await audit(bus, "run-a")
    assert (report.findings, report.unreadable_groups, report.dropped["failed"]) == ((), 1, 1)


async def test_a_group_that_cannot_be_read_although_its_coordinator_had_is_found(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = played()
    n = world.batches[1].groups[0].n
    monkeypatch.setattr("tests.audit.world.encode_group", lambda g: b"\xff" if g.n == n else encode_group(g))
    report = await audited(bus, world)
    assert (kinds(report), report.unreadable_groups) == ({Fault.UNREADABLE}, 0)


async def test_a_group_that_a_batch_record_forgets_is_lost(bus: Bus) -> None:
    world = played(asynchrony={"max_staleness": 2})
    k = next(b.k for b in world.batches if b.live)
    first = world.batches[k].live[0]
    edit_batch(
        world, k, live=(replace(first, first=first.first + 1, count=first.count - 1), *world.batches[k].live[1:])
    )
    report = await audited(bus, world)
    assert (Fault.LOST in kinds(report), report.lost) == (True, 1)


async def test_a_completed_run_leaves_no_group_unsettled_and_an_ended_one_none_lost(bus: Bus) -> None:
    world = World("run-a").play(steps=2)
    world.coordinate()
    world.work(next(iter(world.queue.in_flight_groups())), correct=[True, False])
    in_flight = world.queue.in_flight
    world.ledger.append(StateChange(RunState.FAILED, "the data set cannot be read any more"))
    await world.write(bus)
    assert (await audit(bus, "run-a")).findings == (), "nothing is lost while prompts are stored"
    await bus.js.purge_stream(subjects.PROMPTS)
    failed = await audit(bus, "run-a")
    assert (kinds(failed), failed.lost) == ({Fault.LOST}, in_flight)
    await bus.publish(subjects.ledger("run-a"), encode_ledger(StateChange(RunState.STOPPED, "stopped")))
    assert kinds(await audit(bus, "run-a")) == {Fault.LOST, Fault.UNSETTLED}


async def test_a_run_that_ends_before_its_drops_are_in_a_batch_is_clean(bus: Bus) -> None:
    """The filter freed slots that were refilled after the last batch; DROP records name those groups at the end."""
    world = World("run-a", make_spec(trainer={"total_steps": 50})).play(steps=2)
    for _ in range(4):
        world.coordinate()
        world.work(next(iter(world.queue.in_flight_groups())), correct=[False, False])
    world.coordinate()
    world.end()
    world.save()
    await world.write(bus)
    report = await audit(bus, "run-a")
    assert report.findings == ()
    assert report.dropped["run_ended"] > 0
    assert report.issued == report.trained + sum(report.dropped.values())


@pytest.mark.parametrize("stream", [subjects.GROUPS, subjects.ROLLOUTS])
async def test_a_message_that_a_batch_still_needs_is_missed(bus: Bus, stream: str) -> None:
    world = played()
    entry = world.batches[3].groups[0]
    if stream == subjects.GROUPS:
        del world.groups[entry.groups_sequence]
    else:
        del world.rollouts[entry.rollouts[1].sequences[0]]
    report = await audited(bus, world)
    assert kinds(report) == {Fault.GROUP_MISSING if stream == subjects.GROUPS else Fault.ROLLOUT_MISSING}
    assert f"group {entry.n} of batch 3" in report.findings[0].detail


async def test_purging_up_to_the_floors_is_no_fault_and_beyond_them_is_one(bus: Bus) -> None:
    world = World("run-a").play()
    newest = world.batches[-1].groups[0]
    oldest_kept = min(s for r in newest.rollouts for s in r.sequences)
    world.purge(Floors(0, oldest_kept))
    assert Fault.ROLLOUT_MISSING in kinds(await audited(bus, world))


async def test_a_dropped_group_that_nothing_may_purge_yet_is_missed(bus: Bus) -> None:
    world = played()
    n = next(n for b in world.batches for n, reason in b.dropped)
    sequence = next(s for s, g in world.groups.items() if g.n == n)
    del world.groups[sequence]
    assert kinds(await audited(bus, world)) == {Fault.GROUP_MISSING}


async def test_batches_that_the_last_checkpoint_does_not_cover_are_untrained(bus: Bus) -> None:
    world = played()
    world.trainer = [r for r in world.trainer if not isinstance(r, Checkpoint)]
    assert kinds(await audited(bus, world)) == {Fault.UNTRAINED}


async def test_a_group_in_two_batches_is_trained_twice(bus: Bus) -> None:
    world = played()
    repeated = world.batches[1].groups[0]
    edit_batch(world, 3, groups=(repeated, *world.batches[3].groups[1:]))
    rechain(world)
    report = await audited(bus, world)
    assert Fault.TRAINED_TWICE in kinds(report)
    assert report.trained_twice == 1
    assert any(f"group {repeated.n} is in batch 1 and in batch 3" in f.detail for f in report.findings)


@pytest.mark.parametrize("extra", [1, 0])
async def test_a_chain_that_holds_a_batch_twice_is_told_from_an_unknown_one(bus: Bus, extra: int) -> None:
    """A trainer that lost its place: version 3 has batch 1 (or batch 0) where batch 2 belongs."""
    world = played()
    forged = advance(world.chain[2], world.batches[extra])
    chains = {3: forged, 4: advance(forged, world.batches[3])}
    for i, record in enumerate(world.trainer):
        if isinstance(record, Version) and record.version.number in chains:
            world.trainer[i] = replace(record, chain=chains[record.version.number].hex())
        if isinstance(record, Checkpoint):
            world.trainer[i] = replace(record, chain=chains[record.k].hex())
    report = await audited(bus, world)
    assert kinds(report) == {Fault.TRAINED_TWICE}
    assert [f.detail for f in report.findings] == [f"v3.1 has the hash chain of training batch {extra} twice"]
    assert report.trained_twice == 3


async def test_a_changed_chain_is_found_once_where_it_begins(bus: Bus) -> None:
    world = played()
    at = next(i for i, r in enumerate(world.trainer) if isinstance(r, Version) and r.version.number == 2)
    record = world.trainer[at]
    assert isinstance(record, Version)
    world.trainer[at] = replace(record, chain="00" * 32)
    report = await audited(bus, world)
    assert kinds(report) == {Fault.CHAIN}
    assert report.findings[0].detail.startswith("v2.1 has the hash chain 0000")


async def test_a_batch_record_stored_twice_is_found(bus: Bus) -> None:
    world = played()
    world.ledger.insert(batch_at(world, 2), world.ledger[batch_at(world, 2)])
    report = await audited(bus, world)
    assert {Fault.TRAINED_TWICE, Fault.BATCH_NUMBERS} <= kinds(report)
    assert report.trained_twice == 3


async def test_a_drop_recorded_twice_is_found(bus: Bus) -> None:
    world = World("run-a").play(steps=2)
    world.coordinate()
    drop = Drop((next(iter(world.queue.in_flight_groups())),), DropReason.CANCELLED)
    world.record(drop)
    world.ledger.append(drop)
    world.prompts.discard(drop.groups[0])
    assert kinds(await audited(bus, world)) == {Fault.SETTLED_TWICE}


async def test_a_group_both_dropped_and_trained_is_found(bus: Bus) -> None:
    world = played()
    trained = world.batches[1].groups[0].n
    edit_batch(world, 2, dropped=(*world.batches[2].dropped, (trained, DropReason.ALL_WRONG)))
    assert Fault.SETTLED_TWICE in kinds(await audited(bus, world))
