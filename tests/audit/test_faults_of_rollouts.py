"""One fault planted into an honest run: staleness, order, and rewards on another attempt's tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard

from sluice.audit import Fault
from sluice.errors import WireError
from sluice.transport.nats import Bus
from sluice.types import (
    BatchGroup,
    DropReason,
    FinishReason,
    PolicyVersion,
    RolloutSummary,
)
from sluice.wire.codec import decode_rollout, encode_rollout
from sluice.wire.payload import content_hash
from tests.audit.planting import audited, edit_batch, edit_group, edit_rollout, kinds, played, rechain
from tests.audit.world import World, make_spec


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
    edit_batch(world, 0, groups=(*first[1:], second[0]))
    edit_batch(world, 1, groups=(first[0], *second[1:]))
    rechain(world)
    report = await audited(bus, world)
    assert Fault.ORDER in kinds(report)
    assert "batch 0 takes group 3 and leaves 0, stored before" in [f.detail for f in report.findings]


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda payload: payload[:-4],
        lambda payload: payload + bytes(4),
        lambda payload: bytes(4),
        lambda payload: b"\2\0\0\0\x08\4",
        zstandard.compress,
    ],
    ids=["cut off", "with more behind it", "empty", "of a later format", "in zstd"],
)
async def test_a_rollout_that_no_trainer_can_read_is_found_even_when_its_group_names_its_hash(
    bus: Bus, damage: Callable[[bytes], bytes]
) -> None:
    world = played()

    def spoil(group: BatchGroup) -> BatchGroup:
        mine = group.rollouts[0]
        payload = damage(world.rollouts[mine.sequences[0]])
        with pytest.raises(WireError):
            decode_rollout(payload)
        world.rollouts[mine.sequences[0]] = payload
        return replace(group, rollouts=(replace(mine, content_hash=content_hash(payload)), *group.rollouts[1:]))

    edit_group(world, 2, 0, spoil)
    assert kinds(await audited(bus, world)) == {Fault.UNREADABLE}


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


@pytest.mark.parametrize(
    "change",
    [
        lambda mine, other: replace(mine, offset=other.offset),
        lambda mine, other: replace(mine, nbytes=0),
        lambda mine, other: replace(mine, nbytes=mine.nbytes + 1),
        lambda mine, other: replace(mine, offset=mine.offset + 1, nbytes=mine.nbytes - 1),
        lambda mine, other: other,
    ],
)
async def test_a_rollout_that_names_bytes_of_its_message_which_are_not_its_own_is_found(
    bus: Bus, change: Callable[[RolloutSummary, RolloutSummary], RolloutSummary]
) -> None:
    world = played(packed=True)

    def misplace(group: BatchGroup) -> BatchGroup:
        mine, other = group.rollouts
        assert mine.sequences == other.sequences, "neighbours share a message"
        return replace(group, rollouts=(change(mine, other), other))

    edit_group(world, 1, 0, misplace)
    assert Fault.ROLLOUT_SWAPPED in kinds(await audited(bus, world))


async def test_two_groups_that_name_the_same_message_are_found_though_they_name_other_bytes_of_it(bus: Bus) -> None:
    world = played(packed=True)
    first, second = world.batches[1].groups[:2]
    edit_group(world, 1, 0, lambda g: replace(g, rollouts=(first.rollouts[0], second.rollouts[0])))
    edit_group(world, 1, 1, lambda g: replace(g, rollouts=(first.rollouts[1], second.rollouts[1])))
    report = await audited(bus, world)
    assert Fault.ROLLOUT_SWAPPED in kinds(report)
    assert any("name the same bytes of ROLLOUTS sequence" in finding.detail for finding in report.findings)


async def test_rewards_changed_in_the_ledger_after_the_group_was_stored_are_found(bus: Bus) -> None:
    world = played()
    group = world.batches[2].groups[0]
    flipped = tuple(replace(r, acc=1.0 - r.acc) for r in group.rollouts)
    edit_batch(world, 2, groups=(replace(group, rollouts=flipped), *world.batches[2].groups[1:]))
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
