"""The prompts that this worker works on: they stay in its hands as long as it says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from services.rollout.run import NATS_FAULTS
from sluice.transport.queues import ACK_WAIT_SECONDS, Delivery


class InHand:
    """All deliveries that are held now. A worker that hangs falls silent with its event loop."""

    def __init__(self) -> None:
        self._deliveries: set[Delivery] = set()

    @contextmanager
    def holding(self, delivery: Delivery) -> Iterator[None]:
        """Inside, the delivery is ours."""
        self._deliveries.add(delivery)
        try:
            yield
        finally:
            self._deliveries.discard(delivery)

    async def say_in_progress(self) -> None:
        """Tell the server of each in time, for ever."""
        while True:
            await asyncio.sleep(ACK_WAIT_SECONDS / 3)
            for delivery in list(self._deliveries):
                try:
                    await delivery.in_progress()
                except NATS_FAULTS:
                    continue  # the server is away; it counts the silence only when it is back
