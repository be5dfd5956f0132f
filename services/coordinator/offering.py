"""How issued prompts get into PROMPTS, beside the loop: a stream without room holds up nobody who decides or asks.

The ISSUE record is the decision; prompts that have not got there when their coordinator dies are its successor's to
offer. The loop decides nothing more about groups before all that it has issued is offered, so its next record about
them says so; one about the run's state names the first that is not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import islice

from services.coordinator.parts import NAMED_AFTER_SECONDS
from sluice.cancellation import end_tasks
from sluice.errors import ConfigError
from sluice.transport.nats import Bus
from sluice.transport.queues import offer_prompts
from sluice.types import Prompt
from sluice.views import WaitView

TOGETHER = 64
SOON_SECONDS, LATEST_SECONDS = 0.05, 1.0
"""Until what was refused is tried again: twice as long each time."""


class Offering:
    """The issued prompts of one run that PROMPTS does not have yet, in the order of their issue.

    Args:
        prompt: prompt n, or None if its group is settled or stored by now.
    """

    def __init__(self, bus: Bus, prompt: Callable[[int], Prompt | None]) -> None:
        self._bus, self._prompt = bus, prompt
        self._waiting: dict[int, None] = {}
        self._added = asyncio.Event()
        self._on_their_way = asyncio.Lock()
        self.refused = ""
        """Why the server takes no message as large as one of them: nothing is tried before `try_again`."""
        self._moved_at = 0.0
        """When the first of them was added, or any was taken."""

    @property
    def unoffered(self) -> int | None:
        """The first of those that are not offered yet; None when all are."""
        return next(iter(self._waiting), None)

    def add(self, numbers: Iterable[int]) -> None:
        """Offer these too, as soon as there is room; those that wait already are offered once."""
        if not self._waiting:
            self._moved_at = time.monotonic()
        self._waiting |= dict.fromkeys(numbers)
        self._added.set()

    def try_again(self) -> None:
        """A person may have mended what the server had refused."""
        self.refused = ""
        self._added.set()

    async def clear(self) -> None:
        """Offer none of them. None is on its way any more when this returns, so a purge of PROMPTS is the last word."""
        self._waiting.clear()
        async with self._on_their_way:
            return

    def wait(self) -> WaitView | None:
        """What is waited for, once that has lasted."""
        seconds = time.monotonic() - self._moved_at
        if not self._waiting or self.refused or seconds < NAMED_AFTER_SECONDS:
            return None
        return WaitView(
            name="prompt_room",
            waits_for=f"room in PROMPTS for {len(self._waiting)} prompts: those that nobody has finished, of all runs, "
            "fill it",
            seconds=seconds,
            deadline_seconds=self._bus.deadline_seconds,
        )

    @asynccontextmanager
    async def serving(self, rests: Callable[[], None], fail: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Offer what is added; `rests` is called when all is offered or something is refused, `fail` if it breaks."""

        async def guarded() -> None:
            try:
                await self._serve(rests)
            except Exception as error:
                # Whatever it is, the loop must end by it, or the run would wait for prompts that nobody offers.
                fail(error)

        task = asyncio.create_task(guarded())
        try:
            yield
        finally:
            await end_tasks([task])

    async def _serve(self, rests: Callable[[], None]) -> None:
        while await self._added.wait():
            self._added.clear()
            try:
                await self._offer_all()
            except ConfigError as error:
                self.refused = str(error)
            rests()

    async def _offer_all(self) -> None:
        """Raises: ConfigError: a prompt is larger than the server's max_payload."""
        pause = SOON_SECONDS
        while self._waiting and not self.refused:
            if await self._offer_some():
                pause = SOON_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LATEST_SECONDS)

    async def _offer_some(self) -> bool:
        """Offer the first of them, once; whether that made a difference."""
        async with self._on_their_way:
            tried = list(islice(self._waiting, TOGETHER))
            wanted = {n: prompt for n in tried if (prompt := self._prompt(n)) is not None}
            stored = await offer_prompts(self._bus, list(wanted.values())) if wanted else set()
        gone = [n for n in tried if n in stored or n not in wanted]
        for n in gone:
            self._waiting.pop(n, None)
        if gone:
            self._moved_at = time.monotonic()
        return bool(gone)
