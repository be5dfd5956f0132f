"""How issued prompts get into PROMPTS, and what is said while it has no room for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from services.coordinator.parts import NAMED_AFTER_SECONDS
from sluice.cancellation import end_tasks
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_prompts
from sluice.types import Prompt
from sluice.views import WaitView

PUBLISHED_TOGETHER = 64


async def offer(bus: Bus, prompts: Iterable[Prompt], tell: Callable[[WaitView], Awaitable[None]]) -> None:
    """Offer prompts to the workers, some at a time; `tell` of the wait, again and again, when it lasts.

    Raises:
        TransientError: NATS did not take them within the bus deadline.
    """
    rest, begun = iter(prompts), time.monotonic()
    while part := list(islice(rest, PUBLISHED_TOGETHER)):
        publishing = asyncio.create_task(publish_prompts(bus, part))
        try:
            while not (await asyncio.wait({publishing}, timeout=NAMED_AFTER_SECONDS))[0]:
                await tell(_for_room(time.monotonic() - begun, bus.deadline_seconds))
            await publishing
        finally:
            await end_tasks([publishing])


def _for_room(seconds: float, deadline_seconds: float) -> WaitView:
    return WaitView(
        name="prompt_room",
        waits_for="room in PROMPTS: prompts that nobody has finished, of all runs, fill it",
        seconds=seconds,
        deadline_seconds=deadline_seconds,
    )
