"""What a coordinator misses itself: NATS, Redis, or whoever holds a run. Shown with the run, as its holder cannot."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.coordinator.board import StatusBoard
from services.coordinator.history import RunHistory
from services.coordinator.status import LiveStatus
from sluice.views import WaitView

PATIENCE_SECONDS = 8.0
"""NATS is asked every few seconds; it is away when it has not answered for this long."""
DEADLINE_SECONDS = 60.0


class NatsWatch:
    """When NATS answered last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered_at = clock()

    def answered(self) -> None:
        self._answered_at = self._clock()

    def silent_seconds(self) -> float:
        """0 while it answers."""
        seconds = self._clock() - self._answered_at
        return seconds if seconds >= PATIENCE_SECONDS else 0.0


class Around:
    """The API's own view of what a run needs beside its workers and its trainer."""

    def __init__(self, watch: NatsWatch, board: StatusBoard) -> None:
        self._watch, self._board = watch, board
        self._untold_since: dict[str, float] = {}

    @property
    def nats_is_away(self) -> bool:
        return self._watch.silent_seconds() > 0

    def waits(self, history: RunHistory, live: LiveStatus | None) -> tuple[WaitView, ...]:
        """Of a run, beside those that its holder has told in `live`."""
        if history.state.terminal:
            return ()
        if nats := self._watch.silent_seconds():
            return (_wait("nats", "NATS to answer (SLUICE_NATS_URL)", nats),)
        if redis := self._board.away_seconds():
            return (_wait("redis", "Redis, which shows how the run stands (SLUICE_REDIS_URL)", redis),)
        if live is not None:
            self._untold_since.pop(history.run_id, None)
            return ()
        since = self._untold_since.setdefault(history.run_id, time.monotonic())
        holder = (
            f"a coordinator that can read it ({history.problem})" if history.problem else "a coordinator that holds it"
        )
        return (_wait("coordinator", holder, time.monotonic() - since),)


def _wait(name: str, waits_for: str, seconds: float) -> WaitView:
    return WaitView(name=name, waits_for=waits_for, seconds=seconds, deadline_seconds=DEADLINE_SECONDS)
