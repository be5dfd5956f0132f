"""Where a process's time goes: one thing at a time, so that what it did adds up to how long it was there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class TimeSheet:
    """Seconds by what was done, for one trainer or worker. May be read from another thread than the one that writes.

    Args:
        doing: what is being done from now on.
        spent: told of every stretch of time as it is booked, for a counter.
        clock: seconds that only go up.
    """

    def __init__(
        self, doing: str, spent: Callable[[str, float], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._doing, self._spent, self._clock = doing, spent, clock
        self._since = clock()
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def switch(self, doing: str) -> None:
        """Do something else from now on."""
        with self._lock:
            if doing != self._doing:
                self._book()
                self._doing = doing

    def settle(self) -> dict[str, float]:
        """Seconds so far by what was done; what is being done at this moment counts too."""
        with self._lock:
            self._book()
            return dict(self._seconds)

    def _book(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        self._seconds[self._doing] = self._seconds.get(self._doing, 0.0) + passed
        self._spent(self._doing, passed)
