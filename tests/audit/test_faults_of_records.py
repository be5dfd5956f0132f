"""One fault planted into an honest run: numbers, counts, capacity, TRAINER records, a damaged ledger."""

from __future__ import annotations

from dataclasses import replace

from sluice.audit import Fault, audit
from sluice.transport.nats import Bus
from sluice.types import (
    DropReason,
    Floors,
    Issue,
    Lineage,
    PolicyVersion,
    RunCreated,
    Version,
)
from sluice.wire import subjects
from tests.audit.planting import audited, batch_at, edit_batch, kinds, played
from tests.audit.world import World


async def test_a_missing_issue_range_is_found(bus: Bus) -> None:
    world = played()
    at, gone = [(i, r) for i, r in enumerate(world.ledger) if isinstance(r, Issue)][1]
    del world.ledger[at]
    report = await audited(bus, world)
    assert {Fault.ISSUE_NUMBERS, Fault.NEVER_ISSUED} <= kinds(report)
    assert any(
        f"groups {gone.first} to {gone.first + gone.count - 1} have no ISSUE record" in f.detail
        for f in report.findings
    )


async def test_numbers_issued_again_are_found(bus: Bus) -> None:
    world = played()
    at, again = [(i, r) for i, r in enumerate(world.ledger) if isinstance(r, Issue)][1]
    world.ledger.insert(at, again)
    assert Fault.ISSUE_NUMBERS in kinds(await audited(bus, world))


async def test_a_missing_batch_record_is_found(bus: Bus) -> None:
    world = played()
    del world.ledger[batch_at(world, 1)]
    assert Fault.BATCH_NUMBERS in kinds(await audited(bus, world))


async def test_a_batch_of_another_size_is_found_unless_it_is_the_last(bus: Bus) -> None:
    world = played()
    edit_batch(world, 1, groups=world.batches[1].groups[:-1])
    assert Fault.BATCH_SIZE in kinds(await audited(bus, world))


async def test_more_issued_than_the_version_allows_is_a_capacity_violation(bus: Bus) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    issue = Issue(world.queue.next_n, 4, world.queue.version, Floors(world.queue.groups_seen, 0))
    world.record(issue)
    report = await audited(bus, world)
    assert kinds(report) == {Fault.CAPACITY}
    assert report.capacity_violations == 1
    used, limit = world.queue.tally.trained + len(world.queue.live), world.queue.capacity
    assert f"{used} groups were consumed, kept or in flight; {limit} are allowed" in report.findings[0].detail


async def test_a_slot_refilled_before_the_group_that_freed_it_was_seen_is_a_capacity_violation(bus: Bus) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    world.record(Issue(world.queue.next_n, 1, world.queue.version, Floors(world.queue.groups_seen, 0)))
    world.work(next(iter(world.queue.in_flight_groups())), correct=[False, False])
    assert world.queue.tally.trained + len(world.queue.live) == world.queue.capacity, "by now it would be allowed"
    assert kinds(await audited(bus, world)) == {Fault.CAPACITY}


async def test_a_draw_that_is_skipped_out_of_turn_and_skips_that_a_batch_forgets_are_found(bus: Bus) -> None:
    world = played()
    at = next(i for i, record in enumerate(world.ledger) if isinstance(record, Issue))
    issue = world.ledger[at]
    assert isinstance(issue, Issue)
    world.ledger[at] = replace(issue, skipped=(issue.first + 1, issue.first + issue.count + 7))
    report = await audited(bus, world)
    assert kinds(report) == {Fault.ISSUE_NUMBERS, Fault.TALLY}
    details = [finding.detail for finding in report.findings]
    assert f"skips the draws 1, {issue.count + 7} out of 0 to {issue.count + 1}" in details[0]
    assert "batch 0 counts skipped = 0, the records give 2" in details


async def test_counts_of_a_batch_record_that_are_not_those_of_the_ledger_are_found(bus: Bus) -> None:
    world = played()
    tally = world.batches[2].tally
    edit_batch(world, 2, tally=replace(tally, dropped={**tally.dropped, DropReason.UNIFORM: 7}))
    report = await audited(bus, world)
    assert kinds(report) == {Fault.TALLY}
    assert report.findings[0].detail == "batch 2 counts uniform = 7, the records give 0"


async def test_a_settled_group_listed_as_live_is_found(bus: Bus) -> None:
    world = played()
    settled = Issue(world.batches[0].groups[0].n, 1, 0, Floors(0, 0))
    edit_batch(world, 2, live=(settled, *world.batches[2].live))
    assert kinds(await audited(bus, world)) == {Fault.LIVE}


async def test_groups_issued_after_the_end_are_found(bus: Bus) -> None:
    world = played()
    world.ledger.append(Issue(world.queue.next_n, 1, world.queue.version, Floors(0, 0)))
    assert Fault.AFTER_END in kinds(await audited(bus, world))


async def test_a_version_of_an_overtaken_trainer_is_found(bus: Bus) -> None:
    world = World("run-a").play(steps=2)
    world.restart_trainer()
    world.trainer.append(Version(PolicyVersion(3, 1), "file:///weights", "hash", "00" * 32))
    assert Fault.LINEAGE in kinds(await audited(bus, world))


async def test_a_skipped_version_a_skipped_lineage_and_a_restore_from_nothing_are_found(bus: Bus) -> None:
    world = played()
    at = next(i for i, r in enumerate(world.trainer) if isinstance(r, Version) and r.version.number == 2)
    del world.trainer[at]
    world.trainer.append(Lineage(3, "trainer-3", 2))
    report = await audited(bus, world)
    details = " ".join(f.detail for f in report.findings if f.kind is Fault.LINEAGE)
    assert "v3.1 was published where v2.1 was due" in details
    assert "lineage 3 follows lineage 1" in details
    assert "restores checkpoint 2, which has no record" in details


async def test_a_spec_that_does_not_have_its_hash_is_found(bus: Bus) -> None:
    world = played()
    created = world.ledger[0]
    assert isinstance(created, RunCreated)
    world.ledger[0] = replace(created, spec_json=created.spec_json.replace('"total_steps":4', '"total_steps":5'))
    assert kinds(await audited(bus, world)) == {Fault.SPEC}


async def test_a_ledger_that_lost_its_first_record_is_a_finding_not_a_crash(bus: Bus) -> None:
    world = played()
    del world.ledger[0]
    assert kinds(await audited(bus, world)) == {Fault.SPEC}


async def test_a_damaged_record_is_found_and_the_rest_is_still_counted(bus: Bus) -> None:
    world = played()
    await world.write(bus)
    await bus.publish(subjects.ledger("run-a"), b"\xff\xff\xff")
    report = await audit(bus, "run-a")
    assert kinds(report) == {Fault.UNREADABLE}
    assert report.trained == 12
