"""Groups that are issued and not settled."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sluice.types import BatchGroup, Floors, Group, Issue


@dataclass(slots=True)
class LiveGroup:
    """In flight until `group` is there, kept from then on."""

    version: int
    """Policy version number at issue."""
    floors: Floors
    group: Group | None = None
    groups_sequence: int = 0


class LiveGroups:
    """The live groups in issue order, and which of them are kept.

    Each step costs O(log kept) at most. Groups are issued in the order of their versions, so counts by version say
    which versions the oldest kept groups are of, without looking at any group.
    """

    def __init__(self) -> None:
        self.groups: dict[int, LiveGroup] = {}
        self.kept = 0
        self.unreadable: dict[int, str] = {}
        """Stored groups that cannot be read, with the reason; each is live until a DROP record says so."""
        self._heap: list[int] = []
        """Issue numbers of kept groups, and of some that have left since: these are skipped when they come up."""
        self._live_by_version: Counter[int] = Counter()
        self._kept_by_version: Counter[int] = Counter()

    def issue(self, issue: Issue) -> None:
        """These groups are in flight from now on."""
        for n in range(issue.first, issue.first + issue.count):
            self.groups[n] = LiveGroup(issue.version, issue.floors)
        if issue.count:
            self._live_by_version[issue.version] += issue.count

    def in_flight(self) -> Iterator[int]:
        """Issue numbers that have no stored group yet, oldest first."""
        return (n for n, live in self.groups.items() if live.group is None and n not in self.unreadable)

    def keep(self, sequence: int, group: Group) -> None:
        """A group in flight was stored at this GROUPS sequence and can train."""
        live = self.groups[group.n]
        live.group, live.groups_sequence = group, sequence
        self._kept_by_version[live.version] += 1
        self.kept += 1
        heapq.heappush(self._heap, group.n)

    def leave(self, n: int) -> None:
        """A live group is settled."""
        live = self.groups.pop(n)
        self.unreadable.pop(n, None)
        _take_one(self._live_by_version, live.version)
        if live.group is not None:
            _take_one(self._kept_by_version, live.version)
            self.kept -= 1

    def oldest_kept(self, count: int) -> list[int]:
        """The `count` oldest kept groups, or all there are, oldest first."""
        chosen: list[int] = []
        while self._heap and len(chosen) < count:
            n = heapq.heappop(self._heap)
            if (live := self.groups.get(n)) and live.group:
                chosen.append(n)
        for n in chosen:
            heapq.heappush(self._heap, n)
        return chosen

    def left_over(self, count: int) -> dict[int, int]:
        """Live groups by version, oldest first, but for the `count` oldest kept ones."""
        left = {}
        for version in sorted(self._live_by_version):
            chosen = min(self._kept_by_version[version], count)
            left[version] = self._live_by_version[version] - chosen
            count -= chosen
        return left


def _take_one(counts: Counter[int], version: int) -> None:
    counts[version] -= 1
    if not counts[version]:
        del counts[version]


def batch_group(n: int, live: LiveGroup) -> BatchGroup:
    """A kept group as its BATCH record names it."""
    assert live.group is not None, f"group {n} is chosen for a batch but not stored"
    # Training does not ask where in a rollout its versions change: those who do find it in the group itself.
    rollouts = tuple(replace(r, spans=()) if r.spans else r for r in live.group.rollouts)
    return BatchGroup(n, live.group.attempt, live.version, live.groups_sequence, rollouts)


def lowest_floors(live: Iterable[LiveGroup], highest: Floors) -> Floors:
    """Below which no message is of a group in `live`; `highest` when there is none."""
    floors = [highest, *(group.floors for group in live)]
    return Floors(min(floor.groups for floor in floors), min(floor.rollouts for floor in floors))


def issue_ranges(live: Mapping[int, LiveGroup]) -> Iterator[Issue]:
    """The live groups as ISSUE data, neighbours with the same version and floors together."""
    run: Issue | None = None
    for n, group in live.items():
        if run and n == run.first + run.count and (group.version, group.floors) == (run.version, run.floors):
            run = replace(run, count=run.count + 1)
            continue
        if run:
            yield run
        run = Issue(n, 1, group.version, group.floors)
    if run:
        yield run
