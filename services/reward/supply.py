"""Where the pool gets its worker processes: spares are started in the background, so that a loss costs no wait."""

from __future__ import annotations

import asyncio

from services.reward import metrics
from services.reward.forge import Forge, ForgeEndedError
from services.reward.process import WorkerProcess
from services.reward.worker import WorkerLimits
from sluice.errors import SluiceError
from sluice.telemetry import get_logger

STARTERS = 2
"""Processes that may be starting at once."""
MAX_BACKOFF_SECONDS = 10.0


class WorkerSupply:
    """Starts, lends, takes back and kills workers. `healthy` turns false while none can be started.

    Args:
        limits: what a worker may use.
        keep: idle workers to keep beside the fresh spares.
    """

    def __init__(self, limits: WorkerLimits, keep: int) -> None:
        self._limits, self._keep = limits, keep
        self._log = get_logger("reward")
        self._spares: asyncio.Queue[WorkerProcess] = asyncio.Queue(maxsize=1)
        self._used: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._starters: list[asyncio.Task[None]] = []
        self._forge: Forge | None = None
        self._preparing = asyncio.Lock()
        self._prepared: list[str] = []
        self.healthy = False

    async def start(self) -> dict[str, str]:
        """Start the first worker and give back the labels of its verifiers; more follow in the background.

        Raises:
            ConfigError: a verifier of the allow-list cannot be loaded.
            TransientError, WaitTimeoutError: the worker did not come up.
        """
        first = await self._start_one()
        self._spares.put_nowait(first)
        self._starters = [asyncio.create_task(self._keep_starting()) for _ in range(STARTERS)]
        return first.labels

    async def close(self) -> None:
        """Kill every worker."""
        for starter in self._starters:
            starter.cancel()
        await asyncio.gather(*self._starters, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._all))
        self._all.clear()
        if self._forge is not None:
            await self._forge.close()

    async def take(self) -> WorkerProcess:
        """A worker, rather one that has worked before."""
        while self._used:
            worker = self._used.pop()
            if not worker.ended:
                return worker
            await self.discard(worker, "died")
        return await self.take_fresh()

    async def take_fresh(self) -> WorkerProcess:
        """A worker in which nothing ran before. Waits for one; the callers' own deadlines bound that."""
        while True:
            worker = await self._spares.get()
            if not worker.ended:
                return worker
            await self.discard(worker, "died")

    async def prepare(self, verifier: str) -> None:
        """See to it that new workers have imported what a built-in verifier needs; those without it are ended.

        Raises:
            ConfigError: it cannot be imported.
            TransientError: the template of the workers is gone.
        """
        async with self._preparing:
            if verifier not in self._prepared:
                await self._import(verifier)
                self._prepared.append(verifier)
        idle = [worker for worker in self._used if verifier in worker.unprepared]
        self._used = [worker for worker in self._used if worker not in idle]
        for worker in idle:
            await self.discard(worker, "unprepared")

    async def _import(self, verifier: str) -> None:
        forge = await self._living_forge()
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                await forge.prepare(verifier)
        except TimeoutError:
            await forge.close()
            limit = f"SLUICE_REWARD_START_SECONDS = {self._limits.start_seconds:g}"
            raise ForgeEndedError(f"importing what {verifier} needs took longer than {limit}") from None

    async def give_back(self, worker: WorkerProcess) -> None:
        """Take back an idle worker; `keep` of them wait for the next need."""
        if len(self._used) < self._keep:
            self._used.append(worker)
        else:
            await self.discard(worker, "surplus")

    async def discard(self, worker: WorkerProcess, reason: str) -> None:
        """Kill a worker; `reason` is timeout, set_aside, died, surplus or unprepared."""
        metrics.WORKERS_LOST.labels(reason).inc()
        await worker.kill()
        self._all.discard(worker)
        metrics.WORKERS.set(len(self._all))

    async def _start_one(self) -> WorkerProcess:
        worker = await WorkerProcess.start(await self._living_forge(), self._limits.start_seconds)
        self._all.add(worker)
        metrics.WORKERS.set(len(self._all))
        self.healthy = True
        return worker

    async def _living_forge(self) -> Forge:
        """The template of the workers; another one when that has ended, which knows no libraries yet."""
        if self._forge is None or self._forge.gone:
            gone, self._forge = self._forge, Forge(self._limits)
            self._prepared.clear()
            if gone is not None:
                await gone.close()
        return self._forge

    async def _keep_starting(self) -> None:
        backoff = 0.1
        while True:
            try:
                worker = await self._start_one()
            except (SluiceError, OSError) as error:
                self.healthy = False
                self._log.error("worker_start_failed", error=str(error), retry_seconds=backoff)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            else:
                backoff = 0.1
                await self._spares.put(worker)
