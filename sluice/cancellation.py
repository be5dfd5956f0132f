"""Ending tasks for certain, and in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

REPEAT_SECONDS = 6.0
"""Longer than a task's own clean-up takes, so that a repetition does not interrupt it."""


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> list[BaseException]:
    """Cancel tasks until each has ended; returns what they raised, cancellation aside.

    Once is not enough before Python 3.12: `asyncio.wait_for` drops a cancellation that arrives together with its
    result, and a loop around it then goes on.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=REPEAT_SECONDS)
    faults = (None if task.cancelled() else task.exception() for task in tasks)
    return [fault for fault in faults if fault is not None]


def run_and_end_all(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work` in an event loop of its own, once every task that it has left behind has ended.

    `asyncio.run` cancels those once, and then waits for them: for ever, if one has lost its cancellation. The NATS
    client, while it connects again, is such a one before Python 3.12.
    """

    async def whole() -> T:
        try:
            return await work
        finally:
            await end_tasks(asyncio.all_tasks() - {asyncio.current_task()})

    return asyncio.run(whole())


@contextmanager
def cancelled_by_sigterm() -> Iterator[None]:
    """Within, SIGTERM cancels the task that entered, as Ctrl-C does by itself, so that all is closed in order."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
