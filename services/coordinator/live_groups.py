"""Groups that are issued and not settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def batch_group(n: int, live: LiveGroup) -> BatchGroup:
    """A kept group as its BATCH record names it."""
    assert live.group is not None, f"group {n} is chosen for a batch but not stored"
    return BatchGroup(n, live.group.attempt, live.version, live.groups_sequence, live.group.rollouts)


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
