"""Who waits for what in one process, and since when, so that a wait which lasts is named while it lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

REMIND_SECONDS = 15.0
"""A wait that lasts is in the log after this long, however far off its deadline is."""


class Waits:
    """Named waits that go on now. Several may go on under one name: the longest counts. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._numbers = count()
        self._begun: dict[int, tuple[str, float]] = {}

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Inside, somebody waits."""
        number = self.begin(name)
        try:
            yield
        finally:
            self.end(number)

    def begin(self, name: str) -> int:
        """Somebody waits from now on; the number of this wait, for `end`."""
        number = next(self._numbers)
        self._begun[number] = (name, self._clock())
        return number

    def end(self, number: int) -> float:
        """The wait is over; its seconds."""
        return self._clock() - self._begun.pop(number)[1]

    def longest(self) -> dict[str, float]:
        """Seconds by name."""
        now, longest = self._clock(), dict[str, float]()
        for name, since in list(self._begun.values()):
            longest[name] = max(longest.get(name, 0.0), now - since)
        return longest


class Reminder:
    """Tells of each wait that lasts, once until it has ended."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def due(self, waits: Mapping[str, float]) -> dict[str, float]:
        """Those of `waits`, in seconds by name, that the log should name now."""
        lasting = {name: seconds for name, seconds in waits.items() if seconds >= REMIND_SECONDS}
        fresh = {name: seconds for name, seconds in lasting.items() if name not in self._told}
        self._told = set(lasting)
        return fresh
