"""What a worker as a whole is doing, out of what its groups and its weight sync are doing at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sluice.timesheet import TimeSheet

IDLE = "idle"
CALLED = {
    "weight_sync": "weight_sync",
    "generate": "generate",
    "evaluation": "evaluate",
    "policy_version": "weight_sync",
    "reward": "reward",
    "group": "store",
}
"""What goes on, and how the worker's time is called meanwhile; the first that goes on counts.

An engine that is paused for new weights generates nothing, whatever its groups wait for. One that generates is not
held up by the groups that wait for verdicts beside. A worker that is reserved for an evaluation evaluates, once its
training groups have left the engine. A group that does none of these is being stored.
"""


class Activity:
    """Books a worker's time. Whatever is begun is ended; several of a kind may go on at once.

    Args:
        spent: told of every stretch of time as it is booked.
    """

    def __init__(self, spent: Callable[[str, float], object]) -> None:
        self._going_on: Counter[str] = Counter()
        self._sheet = TimeSheet(IDLE, spent)

    def begin(self, what: str) -> None:
        """`what` is a named wait, or `group` for a group that is held; others change nothing."""
        self._going_on[what] += 1
        if self._going_on[what] == 1:
            self._sheet.switch(self._doing())

    def end(self, what: str) -> None:
        self._going_on[what] -= 1
        if not self._going_on[what]:
            self._sheet.switch(self._doing())

    def settle(self) -> dict[str, float]:
        """Seconds so far by what the worker did."""
        return self._sheet.settle()

    def _doing(self) -> str:
        return next((name for what, name in CALLED.items() if self._going_on[what]), IDLE)
