"""How full the streams are, which all runs share: for dashboards and alerts."""

from __future__ import annotations

import asyncio
import contextlib

import nats
from nats.js.errors import APIError

from services.coordinator.around import NatsWatch
from services.coordinator.metrics import CoordinatorMetrics
from sluice.transport.nats import Bus
from sluice.wire import subjects

LOOK_SECONDS = 5.0
STREAMS = (
    subjects.LEDGER,
    subjects.TRAINER,
    subjects.PROMPTS,
    subjects.ROLLOUTS,
    subjects.GROUPS,
    subjects.ARCHIVE,
    subjects.EVENTS,
    subjects.EVALUATIONS,
    subjects.EVAL_PROMPTS,
    subjects.EVAL_GROUPS,
)


async def watch_streams(bus: Bus, metrics: CoordinatorMetrics, watch: NatsWatch) -> None:
    """Show the size of every stream, for ever. While the server is away, what was seen last is shown."""
    while True:
        with contextlib.suppress(APIError, TimeoutError, nats.errors.Error):  # the log says that the server is away
            await _look(bus, metrics)
            watch.answered()
        await asyncio.sleep(LOOK_SECONDS)


async def _look(bus: Bus, metrics: CoordinatorMetrics) -> None:
    for stream in STREAMS:
        info = await bus.js.stream_info(stream)
        metrics.stream_bytes.labels(stream=stream).set(info.state.bytes)
        metrics.stream_messages.labels(stream=stream).set(info.state.messages)
        if limit := max(info.config.max_bytes or 0, 0):
            metrics.stream_limit.labels(stream=stream).set(limit)
    metrics.storage.set((await bus.js.account_info()).storage)
