"""Tasks end when they are told to, also when a library loses a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from sluice import cancellation
from sluice.cancellation import end_tasks, run_and_end_all


async def deaf_once() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(60)


def test_a_process_ends_with_its_work_also_when_a_task_that_it_left_behind_loses_its_first_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancellation, "REPEAT_SECONDS", 0.05)
    left: list[asyncio.Task[None]] = []

    async def work() -> str:
        left.append(asyncio.create_task(deaf_once()))
        await asyncio.sleep(0)
        return "done"

    assert run_and_end_all(work()) == "done"
    assert left[0].cancelled()


async def test_a_task_that_loses_its_first_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "REPEAT_SECONDS", 0.05)
    task = asyncio.create_task(deaf_once())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await end_tasks([task]) == []
    assert task.cancelled()


async def test_what_tasks_raised_is_told_and_cancellation_is_not() -> None:
    async def fail() -> None:
        raise ValueError("x")

    tasks = [asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(60))]
    await asyncio.sleep(0)
    faults = await end_tasks(tasks)
    assert [str(fault) for fault in faults] == ["x"]
    assert await end_tasks([]) == []
