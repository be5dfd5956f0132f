"""How people hear of a run's waits: the status board and the metrics at once, the log and an alarm once they last."""

from __future__ import annotations

import math
from collections.abc import Iterable

from services.coordinator.board import StatusBoard
from services.coordinator.status import LiveStatus
from sluice.telemetry import Logger
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_event
from sluice.views import WaitView
from sluice.waits import REMIND_SECONDS


class Teller:
    """Says once of each wait of a run that it lasts, and once that it is past its deadline, until it has ended."""

    def __init__(self, bus: Bus, run_id: str, board: StatusBoard, log: Logger) -> None:
        self._bus, self._run_id, self._board, self._log = bus, run_id, board, log
        self._said: set[str] = set()
        """Waits that the log has named since they began."""
        self._overdue: set[str] = set()

    async def tell(self, status: LiveStatus) -> None:
        """This is how the run stands now."""
        await self._board.show(self._run_id, status)
        for wait in _new(status.waits, self._said, REMIND_SECONDS):
            self._log.info("waiting", wait=wait.name, waits_for=wait.waits_for, seconds=round(wait.seconds))
        for wait in _new(status.waits, self._overdue):
            self._log.warning("wait_overdue", wait=wait.name, waits_for=wait.waits_for, seconds=round(wait.seconds))
            await publish_event(self._bus, self._run_id, "alarm", wait.model_dump(mode="json"))


def _new(waits: Iterable[WaitView], known: set[str], most: float = math.inf) -> list[WaitView]:
    """Waits past their deadline, or past `most` seconds, that are not in `known`; leaves there all that are past it."""
    past = {w.name: w for w in waits if w.seconds > min(most, w.deadline_seconds or math.inf)}
    fresh = [wait for name, wait in past.items() if name not in known]
    known.clear()
    known.update(past)
    return fresh
