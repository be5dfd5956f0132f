"""One fault planted into an honest run: the audit names it by its kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.audit import AuditReport, Fault, audit
from sluice.transport.nats import Bus
from sluice.types import (
    Batch,
    BatchGroup,
    Checkpoint,
    Drop,
    DropReason,
    FinishReason,
    Floors,
    Issue,
    Lineage,
    PolicyVersion,
    RolloutSummary,
    RunCreated,
    RunState,
    StateChange,
    Version,
)
from sluice.wire import subjects
from sluice.wire.codec import content_hash, decode_rollout, encode_rollout
from sluice.wire.records import encode_ledger
from tests.audit.world import World, advance, make_spec


def played(**sections: dict[str, object]) -> World:
    """An ended run of four batches whose streams were never purged."""
    return World("run-a", make_spec(**({"checkpoint": {"interval": 4}} | sections)), random.Random(1)).play()


async def audited(bus: Bus, world: World) -> AuditReport:
    await world.write(bus)
    report = await audit(bus, world.run_id)
    assert not report.clean
    return report


def kinds(report: AuditReport) -> set[Fault]:
    return {finding.kind for finding in report.findings}


def rechain(world: World) -> None:
    """Let the trainer have trained the ledger as it now stands, so that the chain is not what gives a fault away."""
    chain = [world.chain[0]]
    for record in world.ledger:
        if isinstance(record, Batch):
            chain.append(advance(chain[-1], record))
    for i, trainer_record in enumerate(world.trainer):
        if isinstance(trainer_record, Version):
            world.trainer[i] = replace(trainer_record, chain=chain[trainer_record.version.number].hex())
        elif isinstance(trainer_record, Checkpoint):
            world.trainer[i] = replace(trainer_record, chain=chain[trainer_record.k].hex())


def edit_group(world: World, k: int, at: int, edit: Callable[[BatchGroup], BatchGroup]) -> None:
    """Change group number `at` of batch `k` in the ledger and in what its worker had stored: both tell the same lie."""
    groups = list(world.batches[k].groups)
    groups[at] = edit(groups[at])
    world.edit_batch(k, groups=tuple(groups))
    stored = world.groups[groups[at].groups_sequence]
    world.groups[groups[at].groups_sequence] = replace(stored, rollouts=groups[at].rollouts, attempt=groups[at].attempt)
    rechain(world)


def edit_rollout(world: World, k: int, edit: Callable[[RolloutSummary], RolloutSummary]) -> None:
    edit_group(world, k, 0, lambda g: replace(g, rollouts=(edit(g.rollouts[0]), *g.rollouts[1:])))


# -------------------------------------------------------------------- lost


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


async def test_a_group_that_a_batch_record_forgets_is_lost(bus: Bus) -> None:
    world = played(asynchrony={"max_staleness": 2})
    k = next(b.k for b in world.batches if b.live)
    first = world.batches[k].live[0]
    world.edit_batch(k, live=(replace(first, first=first.first + 1, count=first.count - 1), *world.batches[k].live[1:]))
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


# -------------------------------------------------------------------- twice


async def test_a_group_in_two_batches_is_trained_twice(bus: Bus) -> None:
    world = played()
    repeated = world.batches[1].groups[0]
    world.edit_batch(3, groups=(repeated, *world.batches[3].groups[1:]))
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
    world.ledger.insert(world.batch_at(2), world.ledger[world.batch_at(2)])
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
    world.edit_batch(2, dropped=(*world.batches[2].dropped, (trained, DropReason.ALL_WRONG)))
    assert Fault.SETTLED_TWICE in kinds(await audited(bus, world))


# -------------------------------------------------------------------- numbers


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
    del world.ledger[world.batch_at(1)]
    assert Fault.BATCH_NUMBERS in kinds(await audited(bus, world))


async def test_a_batch_of_another_size_is_found_unless_it_is_the_last(bus: Bus) -> None:
    world = played()
    world.edit_batch(1, groups=world.batches[1].groups[:-1])
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


async def test_counts_of_a_batch_record_that_are_not_those_of_the_ledger_are_found(bus: Bus) -> None:
    world = played()
    tally = world.batches[2].tally
    world.edit_batch(2, tally=replace(tally, dropped={**tally.dropped, DropReason.UNIFORM: 7}))
    report = await audited(bus, world)
    assert kinds(report) == {Fault.TALLY}
    assert report.findings[0].detail == "batch 2 counts uniform = 7, the records give 0"


async def test_a_settled_group_listed_as_live_is_found(bus: Bus) -> None:
    world = played()
    settled = Issue(world.batches[0].groups[0].n, 1, 0, Floors(0, 0))
    world.edit_batch(2, live=(settled, *world.batches[2].live))
    assert kinds(await audited(bus, world)) == {Fault.LIVE}


async def test_groups_issued_after_the_end_are_found(bus: Bus) -> None:
    world = played()
    world.ledger.append(Issue(world.queue.next_n, 1, world.queue.version, Floors(0, 0)))
    assert Fault.AFTER_END in kinds(await audited(bus, world))


# -------------------------------------------------------------------- staleness and order


async def test_a_stale_group_is_found_and_counted_by_rollout(bus: Bus) -> None:
    world = played(asynchrony={"max_staleness": 0})
    old = PolicyVersion(1, 1)

    def age(group: BatchGroup) -> BatchGroup:
        rollouts = []
        for summary in group.rollouts:
            rollout = decode_rollout(world.rollouts[summary.sequences[0]])
            spans = (replace(rollout.spans[0], version=old), *rollout.spans[1:])
            payload = encode_rollout(replace(rollout, spans=spans))
            world.rollouts[summary.sequences[0]] = payload
            rollouts.append(replace(summary, oldest_version=old, content_hash=content_hash(payload)))
        return replace(group, rollouts=tuple(rollouts))

    edit_group(world, 3, 0, age)
    report = await audited(bus, world)
    assert report.staleness_violations == 2
    assert report.staleness_histogram == {0: 22, 2: 2}
    assert kinds(report) == {Fault.STALE, Fault.VERSION}, "and the prompt had asked for a newer version"


async def test_a_version_that_was_never_published_is_found(bus: Bus) -> None:
    world = played()
    edit_rollout(world, 2, lambda r: replace(r, newest_version=PolicyVersion(2, 9)))
    assert Fault.VERSION in kinds(await audited(bus, world))


async def test_a_younger_group_taken_before_an_older_one_that_was_ready_is_found(bus: Bus) -> None:
    world = World("run-a", make_spec(asynchrony={"max_staleness": 2}))
    world.begin()
    world.coordinate()
    for n in range(4):
        world.work(n, correct=[True, False])
    world.play()
    first, second = world.batches[0].groups, world.batches[1].groups
    assert ([g.n for g in first], second[0].n) == ([0, 1, 2], 3)
    world.edit_batch(0, groups=(*first[1:], second[0]))
    world.edit_batch(1, groups=(first[0], *second[1:]))
    rechain(world)
    report = await audited(bus, world)
    assert Fault.ORDER in kinds(report)
    assert "batch 0 takes group 3 and leaves 0, stored before" in [f.detail for f in report.findings]


# -------------------------------------------------------------------- swapped rollouts and rewards


async def test_another_attempts_rollout_under_a_batchs_sequence_is_found(bus: Bus) -> None:
    """Rewards of one attempt on the tokens of another: the bytes are whole, but they are not those that were scored."""
    world = played()
    entry = world.batches[2].groups[0]
    sequence = entry.rollouts[0].sequences[0]
    world.rollouts[sequence] = encode_rollout(replace(decode_rollout(world.rollouts[sequence]), attempt="other"))
    report = await audited(bus, world)
    assert kinds(report) == {Fault.ROLLOUT_SWAPPED}
    assert f"rollout 0 of group {entry.n} of batch 2" in report.findings[0].detail


async def test_another_attempts_rollout_is_found_even_when_the_group_names_its_hash(bus: Bus) -> None:
    world = played()

    def swap(group: BatchGroup) -> BatchGroup:
        sequence = group.rollouts[0].sequences[0]
        payload = encode_rollout(replace(decode_rollout(world.rollouts[sequence]), attempt="other"))
        world.rollouts[sequence] = payload
        swapped = replace(group.rollouts[0], content_hash=content_hash(payload))
        return replace(group, rollouts=(swapped, *group.rollouts[1:]))

    edit_group(world, 2, 0, swap)
    assert kinds(await audited(bus, world)) == {Fault.ROLLOUT_SWAPPED}


async def test_two_rollouts_of_a_group_with_each_others_rewards_are_found(bus: Bus) -> None:
    world = played()

    def swap(group: BatchGroup) -> BatchGroup:
        a, b = group.rollouts
        return replace(
            group,
            rollouts=(
                replace(a, sequences=b.sequences, content_hash=b.content_hash, length=b.length),
                replace(b, sequences=a.sequences, content_hash=a.content_hash, length=a.length),
            ),
        )

    edit_group(world, 1, 0, swap)
    assert Fault.ROLLOUT_SWAPPED in kinds(await audited(bus, world))


async def test_one_stored_rollout_named_by_two_groups_is_found(bus: Bus) -> None:
    world = played()
    first = world.batches[1].groups[0].rollouts[0]
    edit_group(world, 1, 1, lambda g: replace(g, rollouts=(first, *g.rollouts[1:])))
    assert Fault.ROLLOUT_SWAPPED in kinds(await audited(bus, world))


async def test_rewards_changed_in_the_ledger_after_the_group_was_stored_are_found(bus: Bus) -> None:
    world = played()
    group = world.batches[2].groups[0]
    flipped = tuple(replace(r, acc=1.0 - r.acc) for r in group.rollouts)
    world.edit_batch(2, groups=(replace(group, rollouts=flipped), *world.batches[2].groups[1:]))
    assert kinds(await audited(bus, world)) == {Fault.GROUP_DIFFERS}


@pytest.mark.parametrize(
    "change",
    [
        {"length": 99},
        {"finish_reason": FinishReason.LENGTH},
        {"newest_version": PolicyVersion(0, 1), "oldest_version": PolicyVersion(0, 1)},
    ],
)
async def test_a_summary_that_its_rollout_contradicts_is_found(bus: Bus, change: dict[str, object]) -> None:
    world = played()
    edit_rollout(world, 3, lambda r: replace(r, **change))  # type: ignore[arg-type]  # fields by name
    assert Fault.ROLLOUT_DIFFERS in kinds(await audited(bus, world))


async def test_a_group_with_equal_outcomes_in_a_batch_is_found(bus: Bus) -> None:
    world = played()
    edit_group(world, 2, 1, lambda g: replace(g, rollouts=tuple(replace(r, acc=1.0) for r in g.rollouts)))
    assert kinds(await audited(bus, world)) == {Fault.REASON}


async def test_a_group_dropped_against_its_outcomes_is_found(bus: Bus) -> None:
    world = played()
    n = next(n for b in world.batches for n, reason in b.dropped if reason is DropReason.ALL_WRONG)
    sequence = next(s for s, g in world.groups.items() if g.n == n)
    stored = world.groups[sequence]
    world.groups[sequence] = replace(stored, rollouts=(replace(stored.rollouts[0], acc=1.0), stored.rollouts[1]))
    report = await audited(bus, world)
    assert kinds(report) == {Fault.REASON}
    assert f"group {n} was dropped as all_wrong; its outcomes say keep" in report.findings[0].detail


# -------------------------------------------------------------------- TRAINER


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


# -------------------------------------------------------------------- the ledger as a whole


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
