"""One run in the hands of the coordinator that claimed it: what its loop can do, each step stored before it counts."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

from services.coordinator.announcing import announce
from services.coordinator.board import StatusBoard
from services.coordinator.evaluation.status import Evaluating
from services.coordinator.filter_queue import FilterQueue
from services.coordinator.history import RunHistory
from services.coordinator.meter import Meter
from services.coordinator.metrics import CoordinatorMetrics
from services.coordinator.offering import Offering
from services.coordinator.rules import QueueRules
from services.coordinator.staff import Beat
from services.coordinator.status import Clocks, LiveStatus, counts_of_ledger, status_of
from services.coordinator.supply import Supply
from services.coordinator.telling import Teller
from services.coordinator.written import Written
from sluice.cancellation import end_tasks
from sluice.telemetry import Logger
from sluice.transport.groups import StoredGroup, UnreadableGroup, stored_groups
from sluice.transport.log import Entry, FencedLog, trainer_log
from sluice.transport.nats import Bus
from sluice.transport.queues import delete_prompts, pending_prompts, publish_event
from sluice.types import (
    Batch,
    Claim,
    Drop,
    DropReason,
    GroupStatus,
    Issue,
    LedgerRecord,
    Prompt,
    RunState,
    StateChange,
    TrainerRecord,
    TrainingFailed,
)

SHOW_SECONDS = 1.0


class Run:
    """The state that the loop works on: LEDGER and TRAINER folded into a history, GROUPS folded into the queue."""

    queue: FilterQueue
    evaluating: Evaluating

    def __init__(
        self, bus: Bus, run_id: str, board: StatusBoard, log: Logger, metrics: CoordinatorMetrics, written: Written
    ) -> None:
        self.bus, self.board, self.metrics = bus, board, metrics
        self.log = log.bind(run=run_id)
        self.history = RunHistory(run_id)
        self.supply = Supply(self.history)
        self.offering = Offering(bus, self._prompt_wanted)
        self.workers = 0
        self.clocks = Clocks()
        self.meter = Meter()
        self.unscored_in_a_row = 0
        """Groups without verdicts since the last one that had them; a verifier that always fails scores nothing."""
        self.unscored_because = ""
        self._teller = Teller(bus, run_id, board, self.log)
        self._beat = Beat()
        self._ledger: FencedLog[LedgerRecord] = written.log(bus, run_id)
        self._trainer: FencedLog[TrainerRecord] = trainer_log(bus, run_id)

    @property
    def id(self) -> str:
        return self.history.run_id

    @property
    def trainer_read(self) -> int:
        """TRAINER sequence up to which the history has been folded."""
        return self._trainer.last

    # ---------------------------------------------------------------- taking over

    async def claim(self, coordinator: str) -> None:
        """Read LEDGER to its end and become its only writer; nothing else happens before CLAIM is stored.

        Raises:
            FencedError: another coordinator wrote in between.
        """
        for entry in await self._ledger.read():
            self.history.fold_ledger(entry)
            self.supply.fold(entry.record)
        await self.append(Claim(coordinator))

    async def rebuild(self) -> None:
        """The queue from the last BATCH record, the records after it, PROMPTS, and GROUPS above the floor.

        A live group with neither prompt nor GROUPS message was issued by a predecessor that died before it could
        publish: its prompt is published again, as soon as the data set can be read.
        """
        history = self.history
        for trainer_entry in await self._trainer.read():
            history.fold_trainer(trainer_entry)
        await self._load_data()
        self.queue = FilterQueue.restore(
            QueueRules.of(history.spec, self.supply.rows, history.origin), history.last_batch
        )
        self.queue.generation_limit = history.generation_limit
        self.evaluating = Evaluating(history.spec, history.first_step)
        for record in history.since_batch:
            self.queue.commit(record)
        self.queue.publish(history.training_steps)
        for sequence, group in await stored_groups(self.bus, self.id, self.queue.groups_seen + 1):
            if isinstance(group, UnreadableGroup):
                self._take_unreadable(sequence, group)
            else:
                self.queue.store(sequence, group)
                self.unscored_in_a_row = 0
        self.clocks.issued_at = dict.fromkeys(self.queue.in_flight_groups(), self.clocks.progress())
        if not self.supply.fault:
            await self.publish_missing()

    async def publish_missing(self) -> None:
        """Offer each live prompt that has neither a message in PROMPTS nor a group."""
        if self.history.state in (RunState.RUNNING, RunState.PAUSED):
            published = await pending_prompts(self.bus, self.id)
            self.offering.add(n for n in self.queue.in_flight_groups() if n not in published)

    async def look_for_data(self) -> None:
        """Read the data set again if it was missing, or other than it should be, and its files have changed."""
        if self.supply.fault and await self.supply.looks_other():
            await self._load_data()
            if not self.supply.fault:
                self.log.info("data_is_back", prompts=self.supply.rows)
                await self.publish_missing()

    async def _load_data(self) -> None:
        showing = asyncio.create_task(self._show_loading())
        try:
            await self.supply.load()
        finally:
            await end_tasks([showing])

    async def _show_loading(self) -> None:
        while True:
            status = LiveStatus(counts=counts_of_ledger(self.history), waits=(self.supply.wait(),))
            await self.board.show(self.id, status)
            await asyncio.sleep(SHOW_SECONDS)

    # ---------------------------------------------------------------- records, each stored before it counts

    async def append(self, record: LedgerRecord) -> None:
        """Store one LEDGER record, then let it happen. Raises: FencedError, TransientError."""
        sequence = await self._ledger.append(record)
        self.history.fold_ledger(Entry(sequence, record, datetime.now(UTC)))
        if isinstance(record, Issue | Drop | Batch):
            self.queue.commit(record)
        self.supply.fold(record)

    async def issue(self, planned: Issue) -> None:
        """Issue what was planned, but for draws that the curriculum passes over."""
        issue = self.supply.choose(planned, self.queue.rules.data_limit)
        await self.append(issue)
        numbers = range(issue.first, issue.first + issue.count)
        self.clocks.issued_at |= dict.fromkeys(numbers, time.monotonic())
        self.metrics.issued.labels(run=self.id).inc(issue.count)
        self.metrics.skipped.labels(run=self.id).inc(len(issue.skipped))
        self.offering.add(numbers)

    def _prompt_wanted(self, n: int) -> Prompt | None:
        """Prompt n, if nobody has stored or settled its group by now."""
        live = self.queue.live.get(n)
        return self.supply.prompt(n) if live is not None and live.group is None else None

    async def drop(self, drop: Drop) -> None:
        await self.append(drop)
        for n in drop.groups:
            self.clocks.issued_at.pop(n, None)
        self.metrics.dropped.labels(run=self.id, reason=str(drop.reason)).inc(len(drop.groups))
        why = {"error": drop.error} if drop.error else {}
        self.log.warning("groups_given_up", reason=str(drop.reason), groups=list(drop.groups), **why)

    async def emit(self, batch: Batch) -> None:
        await self.append(batch)
        self.clocks.progress()
        self.meter.mark()
        view = self.history.batches[-1].model_copy(
            update={"in_flight": self.queue.in_flight, "kept_waiting": self.queue.kept}
        )
        full_for = self.clocks.filled(self.queue.kept >= self.queue.rules.batch_size)
        self.metrics.observe_batch(self.id, view, full_for)
        groups = [group.n for group in batch.groups]
        self.log.info(
            "batch_emitted", step=batch.k, reward_mean=view.reward_mean, keep_rate=view.keep_rate, groups=groups
        )
        await publish_event(self.bus, self.id, "batch", view.model_dump(mode="json"))

    async def change_state(self, state: RunState, reason: str, **fields: Any) -> None:
        if (unoffered := self.offering.unoffered) is not None:
            fields["unoffered"] = unoffered
        await self.append(StateChange(state, reason, json.dumps(fields) if fields else ""))
        self.clocks.progress()
        self.metrics.observe_state(self.id, state)
        self.log.info("run_state", state=str(state), reason=reason)
        await announce(self.bus, self.history)
        await publish_event(self.bus, self.id, "state", {"state": str(state), "reason": reason})

    async def resume(self, reason: str) -> None:
        """Go on after a pause; after one at the generation limit, with as many generation batches again."""
        fields: dict[str, Any] = {}
        self.unscored_in_a_row = 0
        self.offering.try_again()
        if self.queue.at_generation_limit and self.queue.generation_limit is not None:
            allowance = self.history.spec.filter.max_generation_batches or 1
            fields["generation_limit"] = self.queue.generation_limit = self.queue.generation_batches + allowance
        await self.change_state(RunState.RUNNING, reason, **fields)

    async def settle(self, reason: DropReason) -> None:
        """Nothing stays live when a run ends: each group is settled on record, and no worker keeps a prompt of it."""
        await self.offering.clear()
        for drop in self.queue.plan_end(reason):
            await self.append(drop)
            if drop.reason is reason:
                self.clocks.issued_at.clear()
                self.metrics.dropped.labels(run=self.id, reason=str(reason)).inc(len(drop.groups))
        await delete_prompts(self.bus, self.id)

    # ---------------------------------------------------------------- what comes in

    def take_group(self, sequence: int, group: StoredGroup) -> None:
        """Fold one stored group; the queue decides whether it is kept."""
        if isinstance(group, UnreadableGroup):
            self._take_unreadable(sequence, group)
            return
        reason = self.queue.store(sequence, group)
        failed = reason is DropReason.VERIFIER_FAILED
        self.unscored_in_a_row = self.unscored_in_a_row + 1 if failed else 0
        self.unscored_because = f"the verifier failed: {group.error}" if failed else ""
        started, now = self.clocks.issued_at.pop(group.n, None), self.clocks.progress()
        self.clocks.fill(self.queue.kept >= self.queue.rules.batch_size)
        if started is not None:  # else it came late, and counts for nothing
            what = {"reason": str(reason)} if reason else {}
            self.log.info("group_dropped" if reason else "group_kept", group=group.n, **what)
        self.metrics.observe_group(self.id, group, reason, None if started is None else now - started)
        if group.status is GroupStatus.SCORED and (drawn := self.supply.drawn(group.n)):
            self.metrics.observe_prompt(self.id, *drawn, kept=reason is None)

    def _take_unreadable(self, sequence: int, group: UnreadableGroup) -> None:
        """Fold a stored group that cannot be read: no other is stored in its place, so it is dropped on record."""
        if self.queue.store_unreadable(sequence, group.n, group.error):
            self.metrics.dead_letters.labels(run=self.id).inc()
            self.log.error("group_unreadable", group=group.n, sequence=sequence, error=group.error)
            self.clocks.issued_at.pop(group.n, None)
            self.unscored_in_a_row += 1
            self.unscored_because = f"it cannot be read ({group.error})"

    def take_trainer_record(self, entry: Entry[TrainerRecord]) -> None:
        """Fold one TRAINER record; a published version frees capacity."""
        self.history.fold_trainer(entry)
        self._trainer.last = entry.sequence
        if isinstance(entry.record, TrainingFailed):
            self.metrics.training_failures.labels(run=self.id).inc()
        self.queue.publish(self.history.training_steps)
        self.clocks.progress()

    async def tick(self, beat: Beat) -> None:
        """Once a second: missing data, who is there, who waits for whom, and an alarm for a wait past its deadline."""
        await self.look_for_data()
        self.workers = len(beat.staff.workers)
        self.meter.beat(beat.staff, self.queue.tally, running=self.history.state is RunState.RUNNING)
        self._beat = beat
        await self._tell()
        self.metrics.observe_lots(self.id, self.supply.lots)
        if news := self.evaluating.news(beat.staff.workers):
            self.log.warning(news["state"], reason=news["reason"])
            await publish_event(self.bus, self.id, "evaluation", news)

    async def _tell(self) -> None:
        """Show how the run stands, and name waits that last."""
        status = status_of(self.history, self.queue, self.clocks, self.meter, self._beat, self.evaluating)
        if self.history.state is RunState.RUNNING and (no_room := self.offering.wait()):
            status = status.model_copy(update={"waits": (no_room, *status.waits)})
        self.metrics.observe_status(self.history, self.queue, status)
        await self._teller.tell(status)
