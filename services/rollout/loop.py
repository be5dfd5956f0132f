"""What a rollout worker does from start to end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from services.rollout import metrics
from services.rollout.attempts import Attempts
from services.rollout.engine import Engine, EngineLimits
from services.rollout.evaluation import Evaluations, Seat
from services.rollout.gate import Gate
from services.rollout.group import Bench, roll_out
from services.rollout.holder import watch_holder
from services.rollout.in_hand import InHand
from services.rollout.presence import LiveStatus, Presence, Status
from services.rollout.run import Run, RunFinder, RunUnfitError, wait_until_over
from services.rollout.scoring import ResponseText
from services.rollout.weight_sync import WeightSync
from sluice.cancellation import end_tasks
from sluice.errors import ConfigError, WaitTimeoutError
from sluice.locations import model_folder
from sluice.telemetry import log_context
from sluice.transport.engine import EngineDownError
from sluice.transport.queues import Delivery, PromptQueue, publish_event
from sluice.transport.reward import RewardClient
from sluice.wire.room import check_message_room

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]
PULL_SECONDS = 0.5
ENGINE_RETRY_SECONDS = 1.0
ENGINE_CACHES = "http*"
"""Where caches lie there may be more, weights and checkpoints that are no copies: so nothing else is looked into."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much this worker takes on, and where its things are."""

    reward_addresses: tuple[str, ...]
    cache: Path
    """For this worker's engine, named by its address (ENGINE_CACHES); beside it may lie those of engines before."""
    max_groups_in_flight: int
    drain_seconds: float


@dataclass(frozen=True, slots=True)
class Watch:
    """`leave`: stop pulling, for whatever reason; `over`: the reason is that the run wants no more groups."""

    leave: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Worker:
    """Serves one run after the other with one engine."""

    def __init__(self, finder: RunFinder, engine: Engine, live: LiveStatus, settings: Settings) -> None:
        self._finder, self._engine, self._settings = finder, engine, settings
        self._live = live
        self._groups: set[asyncio.Task[None]] = set()
        self._sync: WeightSync | None = None
        self._evaluations: Evaluations | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Find a run, serve it until it is over, find the next; return when `stop` is set.

        consumes:     the `runs` bucket
        produces:     see `_serve_run`
        waits for:    a run that is not over ("run")
        unblocked by: a coordinator that accepts a run; SIGTERM
        on failure:   a run that this worker cannot serve is left to others; anything else ends the process
        """
        while not stop.is_set():
            await self._drop_caches()
            run = await _unless(stop, self._finder.next())
            if run is None:
                return
            metrics.join(run.id, self._settings.max_groups_in_flight)
            try:
                with log_context(run=run.id):
                    await self._serve_run(run, stop)
            except RunUnfitError as error:
                self._finder.reject(run.id, error)
            except ConfigError as error:
                fields = {"alarm": "worker_unfit", "worker": run.worker, "error": str(error)}
                await publish_event(run.bus, run.id, "alarm", fields)
                raise
            finally:
                metrics.leave(run.id)

    async def _serve_run(self, run: Run, stop: asyncio.Event) -> None:
        """Turn prompts into groups until the run is over or `stop` is set.

        consumes:     prompts (PROMPTS), policy versions (TRAINER), evaluations (EVALUATIONS)
        produces:     rollouts (ROLLOUTS), groups (GROUPS), a registration, events
        waits for:    the first policy version ("policy_version"), prompts ("prompts"), a free slot ("slot")
        unblocked by: the trainer; the coordinator; a group that ends
        on failure:   groups in flight end by their own rules; a background task that fails ends the process
        """
        model = await asyncio.to_thread(_model_folder, run)
        text = ResponseText(model)
        gate = Gate(run.id)
        sync = self._sync = WeightSync(run, self._engine, gate, self._settings.cache)
        presence = Presence(self._live, lambda: self._status(run.id))
        evaluations = self._evaluations = Evaluations(run, presence.tell)
        deadline = run.spec.reward.deadline_seconds
        scorer = RewardClient(self._settings.reward_addresses, deadline, "reward.deadline_seconds")
        scorer.count_retry = metrics.REWARD_RETRIES.labels(run.id).inc
        run.log.info("run_joined", engine=self._engine.url, worker=run.worker)
        in_hand = InHand()
        background = sync.follow, sync.run, evaluations.follow, in_hand.say_in_progress
        async with presence.registered(run), _watching(run, background, stop) as watch:
            try:
                if ready := await _unless(watch.leave, self._get_ready(run, sync, model)):
                    limits, attempts, queue = ready
                    bench = Bench(run, self._engine, limits, gate, sync, attempts, in_hand, text, scorer, watch.over)
                    await self._pull(queue, bench, evaluations, watch)
            finally:
                await self._finish_groups(watch)
                await scorer.close()
        run.log.info("run_left", over=watch.over.is_set())
        if watch.over.is_set():
            await asyncio.to_thread(shutil.rmtree, self._settings.cache / run.id, ignore_errors=True)

    async def _drop_caches(self) -> None:
        """Remove the weights of runs that ended, or were deleted, when their worker was not there to see it."""
        caches = self._settings.cache.parent
        folders = await asyncio.to_thread(lambda: list(caches.glob(f"{ENGINE_CACHES}/*")))
        over = await self._finder.over({folder.name for folder in folders})
        for folder in folders:
            if folder.name in over:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _get_ready(self, run: Run, sync: WeightSync, model: Path) -> tuple[EngineLimits, Attempts, PromptQueue]:
        """What the first prompt needs, as soon as the engine and NATS give it."""
        limits = await self._learn_limits(run, sync, model)
        attempts = await Attempts.open(run.bus, run.id)
        return limits, attempts, await PromptQueue.join(run.bus, run.id, metrics.PROMPTS_UNREADABLE.labels(run.id).inc)

    async def _pull(self, queue: PromptQueue, bench: Bench, evaluations: Evaluations, watch: Watch) -> None:
        """Keep every slot filled while the engine serves a policy version, but for the time of an evaluation.

        Raises:
            ConfigError: the NATS server may refuse its rollouts. That is seen before a prompt is pulled.
        """
        while not watch.leave.is_set():
            check_message_room(bench.run.spec, bench.run.bus.nc.max_payload)
            if (seat := await evaluations.seat()) is not None:
                await self._evaluate(seat, bench, evaluations, watch)
                continue
            free = self._settings.max_groups_in_flight - len(self._groups)
            if free < 1:  # a late answer to an earlier pull may have brought more than was asked for
                with metrics.waiting(bench.run.id, "slot"):
                    await asyncio.wait(
                        {*self._groups, leaving := asyncio.ensure_future(watch.leave.wait())},
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                leaving.cancel()
            elif bench.sync.held is None:
                await _unless(watch.leave, _first_version(bench.run, bench.sync))
            else:
                with metrics.waiting(bench.run.id, "prompts"):
                    deliveries = await queue.pull(free, PULL_SECONDS)
                for delivery in deliveries:
                    self._start(delivery, bench, watch)

    async def _evaluate(self, seat: Seat, bench: Bench, evaluations: Evaluations, watch: Watch) -> None:
        """Reserved: nothing is pulled for training until the evaluation has ended; what is in flight ends before it."""
        evaluations.reserve(seat.version)
        bench.run.log.info("evaluation_joined", version=str(seat.version), training_groups=len(self._groups))
        try:
            with metrics.waiting(bench.run.id, "evaluation"):
                slots = self._settings.max_groups_in_flight
                await evaluations.serve(seat, bench, slots, watch.leave, self._groups_have_ended)
        finally:
            evaluations.reserve(None)
            await seat.lease.release()
        bench.run.log.info("evaluation_left", version=str(seat.version))

    async def _groups_have_ended(self) -> None:
        while self._groups:
            await asyncio.wait(self._groups)

    def _start(self, delivery: Delivery, bench: Bench, watch: Watch) -> None:
        def end(task: asyncio.Task[None]) -> None:
            metrics.end_group(bench.run.id)
            if not task.cancelled() and task.exception() is not None:
                watch.leave.set()  # and `_finish_groups` raises it
            else:
                self._groups.discard(task)

        with log_context(group=delivery.prompt.n):  # the task keeps the context that it is made in
            task = asyncio.create_task(roll_out(delivery, bench), name=f"group {delivery.prompt.n}")
        metrics.begin_group(bench.run.id)
        if delivery.redelivered:
            metrics.REDELIVERIES.labels(bench.run.id).inc()
        self._groups.add(task)
        task.add_done_callback(end)

    async def _finish_groups(self, watch: Watch) -> None:
        """Let groups in flight end if they are still wanted; then give the rest back."""
        groups = list(self._groups)
        if groups and not watch.over.is_set():
            await asyncio.wait(groups, timeout=self._settings.drain_seconds)
        faults = await end_tasks(groups)
        self._groups.clear()
        if faults:
            raise faults[0]

    async def _learn_limits(self, run: Run, sync: WeightSync, model: Path) -> EngineLimits:
        """After the engine has served its first version: before, it may not be there."""
        while True:
            await _first_version(run, sync)
            try:
                return await self._engine.limits(model)
            except (EngineDownError, WaitTimeoutError) as error:
                run.log.warning("engine_away", error=str(error))
                await asyncio.sleep(ENGINE_RETRY_SECONDS)

    def _status(self, run_id: str) -> Status:
        held = None if self._sync is None else self._sync.held
        reserved = None if self._evaluations is None else self._evaluations.reserved
        return Status(
            engine=self._engine.url,
            version=None if held is None else str(held),
            evaluating=None if reserved is None else str(reserved),
            in_flight=len(self._groups),
            slots=self._settings.max_groups_in_flight,
            seconds=metrics.time_spent(run_id),
            tokens=metrics.tokens(run_id),
            waits={name: round(seconds, 1) for name, seconds in metrics.waits(run_id).items()},
        )


@asynccontextmanager
async def _watching(run: Run, work: Sequence[Work], stop: asyncio.Event) -> AsyncIterator[Watch]:
    """`work` and the reasons to leave, in the background; raises what ended one of them."""
    watch = Watch()

    async def until_over() -> None:
        run.log.info("run_over", reason=await wait_until_over(run))
        watch.over.set()

    background: list[Work] = [*work, partial(watch_holder, run), until_over, stop.wait]
    tasks = [asyncio.create_task(begin()) for begin in background]
    for task in tasks:
        task.add_done_callback(lambda _: watch.leave.set())
    try:
        yield watch
    finally:
        faults = await end_tasks(tasks)
    if faults:
        raise faults[0]


def _model_folder(run: Run) -> Path:
    """Raises: RunUnfitError: the hub does not give the run's model to this worker."""
    try:
        return model_folder(run.spec.model.path)
    except ConfigError as error:
        raise RunUnfitError(str(error)) from None


async def _first_version(run: Run, sync: WeightSync) -> None:
    """Wait, and say so each deadline: until the trainer publishes, or the engine is back, there is nothing to do."""
    while True:
        try:
            await sync.at_least(0)
            return
        except WaitTimeoutError as error:
            run.log.warning("still_waiting", wait=error.wait, error=str(error))


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if `event` is set first; `work` is cancelled then."""
    task, waiter = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await end_tasks([task, waiter])
