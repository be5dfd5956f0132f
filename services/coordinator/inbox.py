"""The loop's ears: GROUPS, TRAINER, requests and the clock, in one queue."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Self

from services.coordinator.control import Request, serve_control
from services.coordinator.loop import News, OfferingRests, Stored, Tick
from services.coordinator.run import Run
from services.coordinator.staff import Beat
from services.coordinator.workers import listen
from sluice.cancellation import end_tasks
from sluice.transport.groups import follow_groups
from sluice.transport.log import Entry, follow_stream
from sluice.wire import subjects
from sluice.wire.records import decode_trainer

TICK_SECONDS = 1.0
UNREAD_GROUPS = 1024
"""Groups that wait here for the loop; the others wait in GROUPS, however far the loop is behind."""


class RunInbox:
    """Follows a run's subjects from where its rebuild has read, and hands everything over in order of arrival."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._queue: asyncio.Queue[News | BaseException] = asyncio.Queue()
        self._put_back: News | BaseException | None = None
        """Comes before all that is in the queue."""
        self._room = asyncio.Semaphore(UNREAD_GROUPS)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._control = await serve_control(self._run.bus, self._run.id, self._hear_request)
        for source in (self._groups(), self._trainer(), self._clock()):
            self._tasks.append(asyncio.create_task(self._guard(source)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._tasks)
        if self._run.bus.nc.is_connected:
            await self._control.unsubscribe()

    async def next(self) -> News:
        news, self._put_back = self._put_back, None
        if news is None:
            news = await self._queue.get()
        if isinstance(news, BaseException):
            raise news
        if isinstance(news, Stored):
            self._room.release()
        return news

    def groups_at_hand(self) -> Iterator[Stored]:
        """The groups that come next and are there already, as many as are asked for."""
        while self._put_back is None and not self._queue.empty():
            news = self._queue.get_nowait()
            if not isinstance(news, Stored):
                self._put_back = news
                return
            self._room.release()
            yield news

    def fail(self, error: BaseException) -> None:
        """End the loop with this error: what works beside it has found out that the run is not ours any more."""
        self._queue.put_nowait(error)

    def offering_rests(self) -> None:
        """What was issued is offered, or refused: more may follow."""
        self._queue.put_nowait(OfferingRests())

    def _hear_request(self, request: Request) -> None:
        self._queue.put_nowait(request)

    async def _guard(self, source: Coroutine[Any, Any, None]) -> None:
        """A source that breaks ends the loop with its own error instead of falling silent."""
        try:
            await source
        except Exception as error:
            self.fail(error)

    async def _groups(self) -> None:
        run = self._run
        start = run.queue.groups_seen + 1
        async for sequence, group in follow_groups(run.bus, run.id, start):
            await self._room.acquire()
            self._queue.put_nowait(Stored(sequence, group))

    async def _trainer(self) -> None:
        run = self._run
        start = run.trainer_read + 1
        async for sequence, payload, at in follow_stream(run.bus, subjects.TRAINER, subjects.trainer(run.id), start):
            self._queue.put_nowait(Entry(sequence, decode_trainer(payload), at))

    async def _clock(self) -> None:
        beat = Beat()
        while True:
            beat = await listen(self._run.bus, self._run.id, otherwise=beat)
            self._queue.put_nowait(Tick(beat))
            await asyncio.sleep(TICK_SECONDS)
