"""NATS is asynchronous and torch is not: one event loop in a thread of its own, and a bridge to it.

Heartbeats, lease renewals and the ledger subscription go on in that thread while a training step computes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.trainer import metrics
from sluice.errors import TransientError, WaitTimeoutError
from sluice.telemetry import Logger
from sluice.transport.nats import RETRYABLE

T = TypeVar("T")
REMIND_SECONDS = 10.0


class NatsThread:
    """Runs coroutines for a caller that is not one."""

    def __init__(self, log: Logger, deadline_seconds: float) -> None:
        self._log, self._deadline = log, deadline_seconds
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="nats", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin `work` in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(
        self,
        work: Coroutine[Any, Any, T],
        wait: str,
        deadline_seconds: float | None = None,
        knob: str = "SLUICE_NATS_DEADLINE_SECONDS",
    ) -> T:
        """Run `work` in the event loop and return its result, or raise what it raised.

        The bus retries within its own deadline; this one, twice that unless given, ends what does not end by itself.

        Raises:
            WaitTimeoutError: it took longer than `deadline_seconds`, which `knob` changes.
            TransientError: NATS did not answer within the bus deadline.
        """
        seconds = deadline_seconds or 2 * self._deadline
        future = self.start(work)
        end = time.monotonic() + seconds
        with metrics.waiting(wait):
            while not future.done():
                concurrent.futures.wait([future], min(REMIND_SECONDS, max(end - time.monotonic(), 0.0)))
                if not future.done():
                    self._log.warning("waiting", wait=wait, seconds_left=round(end - time.monotonic()))
                    if time.monotonic() >= end:
                        future.cancel()
                        raise WaitTimeoutError(wait, seconds, knob)
        try:
            return future.result()
        except RETRYABLE as error:
            raise TransientError(
                f"NATS did not answer for {wait!r} within {self._deadline:g} s ({error!r}); "
                "look at the server, or raise SLUICE_NATS_DEADLINE_SECONDS"
            ) from None

    def close(self) -> None:
        """Stop the loop; what still runs in it is cancelled."""
        self.loop.call_soon_threadsafe(self._cancel_all)
        self._thread.join(timeout=5)

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        gathered = asyncio.gather(*tasks, return_exceptions=True)
        gathered.add_done_callback(lambda _: self.loop.stop())
