"""Small requests for verdicts that are made at the same moment share a call, which costs more than what it carries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from sluice.cancellation import end_tasks
from sluice.errors import PermanentError, TransientError, WireError
from sluice.types import ScoreItem, Verdict

GATHER_SECONDS = 0.005
"""While shared calls are open the next one is filled for so long; without one nobody waits for company."""
SMALL_ITEMS = 8
"""Requests of more items have a call of their own: what it costs is little beside their checks."""
TOGETHER_SECONDS = 1.0
ALONE_SECONDS = 60.0
"""After a shared call that came to nothing there is none for so long: the verifier may be a slow one."""

_Answer = asyncio.Future[list[Verdict] | None]


class Together:
    """Puts small requests into one call: those of one turn of the event loop, and of some milliseconds when many come.

    None of them waits for the checks of another longer than TOGETHER_SECONDS, and none has another's failure: what a
    shared call has not brought by then, or cannot bring, each asks for by itself.

    Args:
        ask: brings the verdicts of a call, or raises.
    """

    def __init__(self, ask: Callable[[Sequence[ScoreItem]], Awaitable[list[Verdict]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[Sequence[ScoreItem], _Answer]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._alone_until = 0.0

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """The verdicts of these items. Raises: what `ask` raises of them."""
        loop = asyncio.get_running_loop()
        if len(items) > SMALL_ITEMS or loop.time() < self._alone_until:
            return await self._ask(items)
        if not self._waiting:
            loop.call_later(GATHER_SECONDS if self._calls else 0.0, self._send)
        answer: _Answer = loop.create_future()
        self._waiting.append((items, answer))
        verdicts = await answer
        return await self._ask(items) if verdicts is None else verdicts

    async def close(self) -> None:
        """End the calls that are open; who waits for them asks by itself."""
        await end_tasks(list(self._calls))

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            _settle(waiting[0][1], None)
            return

        def end(call: asyncio.Task[None]) -> None:
            """Also of a call that was cancelled, be it before it began."""
            self._calls.discard(call)
            for _, answer in waiting:
                _settle(answer, None)

        call = asyncio.get_running_loop().create_task(self._call(waiting))
        self._calls.add(call)
        call.add_done_callback(end)

    async def _call(self, waiting: Sequence[tuple[Sequence[ScoreItem], _Answer]]) -> None:
        """Settle the answers if the call brings them."""
        try:
            async with asyncio.timeout(TOGETHER_SECONDS):
                verdicts = iter(await self._ask([item for items, _ in waiting for item in items]))
        except (TimeoutError, TransientError, PermanentError, WireError):
            self._alone_until = asyncio.get_running_loop().time() + ALONE_SECONDS
            return
        for items, answer in waiting:
            _settle(answer, list(islice(verdicts, len(items))))


def _settle(answer: _Answer, verdicts: list[Verdict] | None) -> None:
    if not answer.done():  # whoever asked may have been cancelled
        answer.set_result(verdicts)
