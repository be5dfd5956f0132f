"""What the pool queues: the items of a request, and how long the checks of a verifier usually take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.types import ScoreItem, Verdict

MAX_CHUNK = 64
CHUNK_SECONDS = 0.05
MIN_SLICE_SECONDS = 0.1


class Request:
    """Collects the verdicts of one call; `done` is set with the last one. Cancelling `done` abandons the rest."""

    def __init__(self, size: int) -> None:
        self.verdicts: list[Verdict | None] = [None] * size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._missing = size

    def settle(self, index: int, verdict: Verdict) -> None:
        self.verdicts[index] = verdict
        self._missing -= 1
        if self._missing == 0 and not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True, eq=False)
class Job:
    """One item of a request on its way through the pool. `deaths` counts the workers that ended while judging it."""

    request: Request
    index: int
    verifier: str
    item: ScoreItem
    deaths: int = 0

    @property
    def abandoned(self) -> bool:
        return self.request.done.done()


@dataclass(slots=True)
class Pace:
    """How long a verifier's checks take, learnt from those that finished; decides batch sizes and patience."""

    seconds: float = 0.001
    longest: float = 0.0
    """The longest of late: of checks with a long tail the slow ones are no hanging ones."""

    def observe(self, seconds: float) -> None:
        self.seconds += 0.1 * (seconds - self.seconds)
        self.longest = max(seconds, 0.98 * self.longest)

    @property
    def chunk(self) -> int:
        """Items that may share a message to a worker."""
        return max(1, min(MAX_CHUNK, int(CHUNK_SECONDS / self.seconds)))

    def slice(self, limit: float) -> float:
        """Seconds after which an unfinished check no longer may hold back others."""
        return min(limit, max(MIN_SLICE_SECONDS, 3 * self.seconds, 2 * self.longest))


@dataclass(slots=True)
class Backlog:
    """Jobs waiting for a worker, a queue a verifier, served in turn: one verifier's flood delays no other's items."""

    _queues: dict[str, deque[Job]] = field(default_factory=dict)
    _waiting: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, jobs: Iterable[Job], first: bool = False) -> None:
        """Queue jobs behind the others of their verifiers, or before them."""
        ordered = list(jobs)
        for job in reversed(ordered) if first else ordered:
            queue = self._queues.setdefault(job.verifier, deque())
            queue.appendleft(job) if first else queue.append(job)
            self._waiting.set()

    async def take(self, paces: dict[str, Pace]) -> list[Job]:
        """The next jobs of the verifier whose turn it is, as many as may share a message. Waits for some."""
        while True:
            await self._waiting.wait()
            jobs = self._next(paces)
            if jobs:
                return jobs

    def _next(self, paces: dict[str, Pace]) -> list[Job]:
        name = next(iter(self._queues), None)
        if name is None:
            self._waiting.clear()
            return []
        queue = self._queues.pop(name)
        jobs: list[Job] = []
        while queue and len(jobs) < paces[name].chunk:
            job = queue.popleft()
            if not job.abandoned:
                jobs.append(job)
        if queue:
            self._queues[name] = queue  # at the end: the next verifier's turn
        return jobs
