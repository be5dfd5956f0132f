"""What the trainer does next, decided from LEDGER alone by rank 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from services.trainer import metrics
from services.trainer.claim import without_skipped
from services.trainer.ledger import LedgerEntry, LedgerFeed
from sluice.config import RunSpec
from sluice.errors import PermanentError
from sluice.telemetry import Logger
from sluice.types import Batch, Floors, RunState, StateChange
from sluice.waits import Reminder

BEAT_SECONDS = 5.0
"""The other ranks hear from rank 0 at least this often, so that no collective call of theirs runs into its limit."""


@dataclass(frozen=True, slots=True)
class Train:
    """Train this batch and publish; then save if `save`."""

    batch: Batch
    save: bool


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint of the weights as they are."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing yet: look again."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run needs no trainer any more."""


Item = Train | Save | Idle | Finish


class Agenda:
    """Turns ledger records into items, each record once and in order."""

    def __init__(self, feed: LedgerFeed, spec: RunSpec, room_wanted: Callable[[Floors], bool], log: Logger) -> None:
        self._feed, self._spec, self._room_wanted, self._log = feed, spec, room_wanted, log
        self._items: deque[Item] = deque()
        self._quiet_since = time.monotonic()
        self._reminder = Reminder()
        self._skipped: Collection[int] = ()
        self._resumed_at = 0
        self.k = 0
        """The batch that comes next."""
        self.covered = 0
        """LEDGER sequence of the last record that was taken."""
        self.saved_k: int | None = None
        """k of the newest checkpoint of these weights."""
        self.floors: dict[int, Floors] = {}
        """Of each batch seen, by its index."""
        self.records: list[tuple[int, bytes]] = []
        """Sequence and bytes of the records taken since the newest checkpoint."""

    def go_on(self, skipped: Collection[int], resumed_at: int) -> None:
        """Batches of the skipped groups are passed over; an end before LEDGER sequence `resumed_at` was none."""
        self._skipped, self._resumed_at = skipped, resumed_at

    def resume(self, k: int, covered: int) -> None:
        """Start where a checkpoint stands: its records were acted on before."""
        self.k, self.covered, self.saved_k = k, covered, k

    def saved(self) -> None:
        """A checkpoint of batch `k` and everything before it is stored."""
        self.saved_k, self.records = self.k, []

    def wake(self) -> None:
        """Something else than the ledger is to be looked at: `next` waits no longer. May be called from any thread."""
        self._feed.wake()

    def next(self) -> Item:
        """The next item; waits for the ledger, but no longer than BEAT_SECONDS at a time."""
        while not self._items:
            with metrics.waiting("batch"):
                entry = self._feed.next(BEAT_SECONDS)
            if entry is None:
                self._remind()
                return Idle()
            self._quiet_since = time.monotonic()
            self._reminder.due({})
            self._take(entry)
        return self._items.popleft()

    def _take(self, entry: LedgerEntry) -> None:
        if isinstance(entry.record, Batch):
            self.floors[entry.record.k] = entry.record.floors
        if entry.sequence <= self.covered:
            return
        self.covered = entry.sequence
        self.records.append((entry.sequence, entry.payload))
        match entry.record:
            case Batch() as batch:
                self._take_batch(batch)
            case StateChange(state=RunState.PAUSED):
                self._save_if_new()
            case StateChange(state=RunState.STOPPING):
                self._save_if_new()
                self._items.append(Finish())
            case StateChange(state=state) if state.terminal and entry.sequence > self._resumed_at:
                self._items.append(Finish())

    def _take_batch(self, batch: Batch) -> None:
        if batch.k != self.k:
            raise PermanentError(f"LEDGER holds batch {batch.k} at sequence {self.covered}, where {self.k} belongs")
        self.k += 1
        due = self.k % self._spec.checkpoint.interval == 0 or self.k == self._spec.trainer.total_steps
        self._items.append(Train(without_skipped(batch, self._skipped), save=due or self._room_wanted(batch.floors)))

    def _save_if_new(self) -> None:
        if self.saved_k != self.k:
            self._items.append(Save())

    def _remind(self) -> None:
        """Once, when it has been quiet for long: nothing is wrong with that, but a person may want to know."""
        quiet = time.monotonic() - self._quiet_since
        for wait, seconds in self._reminder.due({"batch": quiet}).items():
            self._log.info("waiting", wait=wait, seconds=round(seconds), next_batch=self.k)
