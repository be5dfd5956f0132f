"""A pool of worker processes in which a check that hangs, crashes or eats memory harms nobody but itself.

Lanes, one a worker, take small batches from the backlog. A check that runs much longer than its verifier's checks
usually do is set aside: it keeps its worker and its full time limit, the rest of its batch goes back to the end of
the backlog (where one check hangs, others of the same request may), and the lane goes on with a spare worker. So a
storm of hanging checks costs a lane a fraction of a second each, never the time limit. Places for checks set aside
are bounded, for each verifier by itself: the hanging checks of one leave those of another alone. While all are taken,
such a check's worker is killed at once and the check waits its turn to be run again, alone and with the full limit.

A worker that dies takes its batch along, and the cause may lie outside the check (the kernel's memory killer, an
operator): the check is run once more, alone in a fresh worker, before it gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass

from services.reward import metrics
from services.reward.job import Backlog, Job, Pace, Request
from services.reward.process import WorkerEndedError, WorkerProcess
from services.reward.supply import WorkerSupply
from services.reward.verifiers.registry import CHECK
from services.reward.worker import Result, WorkerLimits
from sluice.errors import ConfigError, PermanentError, TransientError
from sluice.telemetry import get_logger
from sluice.types import ScoreItem, Verdict, VerdictKind

MIN_WAIT_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`workers` lanes, and as many places for each verifier's checks set aside; `max_pending` items may wait or run."""

    workers: int
    timeout_seconds: float
    max_pending: int
    limits: WorkerLimits


class Pool:
    """Judges items in worker processes. Use `start` before and `close` after."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._supply = WorkerSupply(settings.limits, settings.workers)
        self._backlog = Backlog()
        self._places: dict[str, asyncio.Semaphore] = {}
        self._paces: dict[str, Pace] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = 0
        self.labels: dict[str, str] = {}
        self.failed = asyncio.Event()
        """Set when the pool itself is broken: the process must end, and its supervisor starts another."""

    async def start(self) -> None:
        """Start the workers.

        Raises:
            ConfigError: a verifier of the allow-list cannot be loaded.
            TransientError, WaitTimeoutError: no worker came up.
        """
        labels = await self._supply.start()
        self.labels = {name: label for name, label in labels.items() if not name.startswith(CHECK)}
        self._paces = {name: Pace() for name in labels}
        self._places = {name: asyncio.Semaphore(self.settings.workers) for name in labels}
        metrics.LANES.set(self.settings.workers)
        for _ in range(self.settings.workers):
            self._run(self._lane())

    @property
    def ready(self) -> bool:
        """Whether workers can be started."""
        return self._supply.healthy

    async def close(self) -> None:
        """Kill every worker; requests still open stay without an answer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._supply.close()

    async def score(self, items: Sequence[tuple[str, ScoreItem]]) -> list[Verdict]:
        """A verdict for each (verifier name, item). Cancelling abandons what has not begun.

        Raises:
            TransientError: too many items are waiting already.
            PermanentError: these are more than may ever wait.
        """
        if not items:
            return []
        limit = self.settings.max_pending
        if self._pending + len(items) > limit:
            kind = PermanentError if len(items) > limit else TransientError
            raise kind(f"{len(items)} items and the {self._pending} pending pass SLUICE_REWARD_MAX_PENDING = {limit}")
        request = Request(len(items))
        self._pending += len(items)
        metrics.PENDING.set(self._pending)
        try:
            self._backlog.add(Job(request, index, name, item) for index, (name, item) in enumerate(items))
            await request.done
        finally:
            request.done.cancel()
            self._pending -= len(items)
            metrics.PENDING.set(self._pending)
        return [verdict for verdict in request.verdicts if verdict is not None]

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            get_logger("reward").error("pool_broken", error=repr(error), exc_info=error)
            self.failed.set()

    async def _lane(self) -> None:
        while True:
            worker: WorkerProcess | None = await self._supply.take()
            while worker is not None:
                jobs = await self._backlog.take(self._paces)
                if worker.ended:  # while it had nothing to do, so no check is suspect
                    self._backlog.add(jobs, first=True)
                    await self._supply.discard(worker, "died")
                    break
                if jobs[0].verifier in worker.unprepared:
                    await self._exchange(worker, jobs)
                    break
                with metrics.BUSY_LANES.track_inprogress():
                    worker = await self._judge(worker, jobs)

    async def _exchange(self, worker: WorkerProcess, jobs: list[Job]) -> None:
        """The first checks of a verifier whose library takes seconds to import: later workers are born with it."""
        try:
            await self._supply.prepare(jobs[0].verifier)
        except ConfigError as error:
            for job in jobs:
                label = worker.labels[job.verifier]
                self._settle(job, Verdict(VerdictKind.ERROR, None, None, "", label, 0.0, str(error)))
        except TransientError as error:
            get_logger("reward").warning("import_failed", verifier=jobs[0].verifier, error=str(error))
            self._backlog.add(jobs, first=True)
        else:
            self._backlog.add(jobs, first=True)
        await self._supply.discard(worker, "unprepared")

    async def _judge(self, worker: WorkerProcess, jobs: list[Job]) -> WorkerProcess | None:
        """Have a batch judged; gives the worker back, or None when the lane needs another."""
        patience = self._paces[jobs[0].verifier].slice(self.settings.timeout_seconds)
        worker.send([(job.verifier, job.item) for job in jobs])
        unfinished = dict(enumerate(jobs))
        wait = patience
        while unfinished:
            try:
                results = await worker.results(wait)
            except TimeoutError:
                index, seconds = worker.running(unfinished)
                if seconds >= patience:
                    await self._set_aside(worker, unfinished, index, seconds)
                    return None
                wait = max(MIN_WAIT_SECONDS, patience - seconds)
            except WorkerEndedError as error:
                await self._bury(worker, unfinished, str(error))
                return None
            else:
                wait = patience
                self._settle_all(worker, unfinished, results)
        return worker

    async def _set_aside(self, worker: WorkerProcess, unfinished: dict[int, Job], index: int, seconds: float) -> None:
        reusable = index == max(unfinished)
        job = unfinished.pop(index)
        self._backlog.add(unfinished.values())
        places = self._places[job.verifier]
        if places.locked():
            await self._supply.discard(worker, "set_aside")
            self._run(self._alone(job))
            return
        await places.acquire()
        self._run(self._adopt(worker, job, index, seconds, reusable))

    async def _adopt(self, worker: WorkerProcess, job: Job, index: int, seconds: float, reusable: bool) -> None:
        """Wait for the rest of a check's time limit; its worker serves again when its batch holds nothing more."""
        try:
            alive = await self._finish(worker, job, index, self.settings.timeout_seconds - seconds)
        finally:
            self._places[job.verifier].release()
        if alive and reusable:
            await self._supply.give_back(worker)
        elif alive:
            await self._supply.discard(worker, "set_aside")

    async def _alone(self, job: Job) -> None:
        """Run a check by itself with the full time limit, in a worker that nothing ran in before."""
        async with self._places[job.verifier]:
            if job.abandoned:
                return
            worker = await self._supply.take_fresh()
            worker.send([(job.verifier, job.item)])
            alive = await self._finish(worker, job, 0, self.settings.timeout_seconds)
        if alive:
            await self._supply.give_back(worker)

    async def _finish(self, worker: WorkerProcess, job: Job, index: int, seconds: float) -> bool:
        """Wait until a check is settled; whether the worker is still alive."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        unfinished = {index: job}
        while unfinished:
            try:
                self._settle_all(worker, unfinished, await worker.results(max(0.0, deadline - loop.time())))
            except TimeoutError:
                self._settle(job, self._timeout(worker, job))
                await self._supply.discard(worker, "timeout")
                return False
            except WorkerEndedError as error:
                await self._bury(worker, unfinished, str(error))
                return False
        return True

    async def _bury(self, worker: WorkerProcess, unfinished: dict[int, Job], how: str) -> None:
        """Deal with a dead worker's jobs: the running one is suspect, the others never had a chance."""
        index, _ = worker.running(unfinished)
        label = worker.labels[unfinished[index].verifier]
        await self._supply.discard(worker, "died")
        suspect = unfinished.pop(index)
        self._backlog.add(unfinished.values())
        suspect.deaths += 1
        if suspect.deaths == 1:
            self._run(self._alone(suspect))
        else:
            message = f"{suspect.verifier} ended its worker twice: {how}"
            self._settle(suspect, Verdict(VerdictKind.ERROR, None, None, "", label, 0.0, message))

    def _settle_all(self, worker: WorkerProcess, unfinished: dict[int, Job], results: list[Result]) -> None:
        for index, seconds, acc, score, extracted, message in results:
            job = unfinished.pop(index, None)
            if job is not None:
                kind = VerdictKind.ERROR if acc is None else VerdictKind.SCORED
                label = worker.labels[job.verifier]
                self._paces[job.verifier].observe(seconds)
                self._settle(job, Verdict(kind, acc, score, extracted, label, seconds, message))

    def _settle(self, job: Job, verdict: Verdict) -> None:
        job.request.settle(job.index, verdict)

    def _timeout(self, worker: WorkerProcess, job: Job) -> Verdict:
        limit = self.settings.timeout_seconds
        message = f"{job.verifier} took longer than SLUICE_REWARD_TIMEOUT_SECONDS = {limit:g}"
        return Verdict(VerdictKind.TIMEOUT, None, None, "", worker.labels[job.verifier], limit, message)
