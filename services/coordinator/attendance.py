"""Who was there and has fallen silent without a goodbye: killed, frozen, or cut off."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

FORGET_SECONDS = 300.0
"""Who has been silent for this long is taken for gone for good."""


class Attendance:
    """One run's; somebody new takes the place of whoever has been silent longest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._silent: dict[str, float] = {}

    def note(self, present: Collection[str], left: Collection[str] = ()) -> None:
        """Take who is registered now, and who has unregistered lately."""
        now = self._clock()
        for name in present:
            if name not in self._seen and self._silent:
                self._silent.pop(name if name in self._silent else next(iter(self._silent)))
            self._seen[name] = now
        for name in [name for name in self._seen if name not in present]:
            since = self._seen.pop(name)
            if name not in left:
                self._silent[name] = since
        self._silent = {name: since for name, since in self._silent.items() if now - since < FORGET_SECONDS}

    def silent(self) -> dict[str, float]:
        """Seconds since somebody was last seen, by name, longest first."""
        now = self._clock()
        return {name: now - since for name, since in self._silent.items()}
