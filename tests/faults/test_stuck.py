"""A part that is stuck is named, with how long it has been, in the run's status, in a metric and in an alarm."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from sluice.transport.log import read_stream
from sluice.transport.nats import Bus
from sluice.wire import subjects
from tests.coordinator.stage import Coordinator, Stage, create, get, spec
from tests.faults.conftest import StartCoordinator
from tests.faults.work import Hands, batches, until
from tests.local.processes import supervised, valkey
from tests.servers import free_port


async def test_whoever_is_stuck_is_named_in_the_status_a_metric_and_an_alarm(
    bus: Bus, nats_url: str, start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    redis = free_port()
    async with supervised([valkey("redis", redis, tmp_path / "redis")], tmp_path / "logs"):
        coordinator = start_coordinator(nats_url, SLUICE_REDIS_URL=f"redis://127.0.0.1:{redis}/0")
        run = spec(deadlines__no_progress_seconds=1.0, asynchrony__max_staleness=0)
        stage = Stage(bus, (await create(coordinator, run))["id"])
        await until(_named(coordinator, stage, "trainer"), "no trainer has joined")
        await stage.join()
        hands = Hands(stage)
        await hands.hold(*range(4))
        await until(_named(coordinator, stage, "groups"), "a worker holds its groups and says nothing")
        await hands.store(*range(4))
        await batches(stage, 1)
        await until(_named(coordinator, stage, "training_step"), "the trainer does not publish v1")


def _named(coordinator: Coordinator, stage: Stage, wait: str) -> Callable[[], Awaitable[bool]]:
    """Whether all three speak of this wait, past its deadline."""

    async def named() -> bool:
        alarms = await _alarms(stage)
        view = await get(coordinator, f"/v1/runs/{stage.run_id}")
        waits = {w["name"]: w for w in view["waits"]}
        async with httpx.AsyncClient() as client:
            shown = (await client.get(f"{coordinator.url}/metrics")).text
        late = wait in waits and waits[wait]["seconds"] > waits[wait]["deadline_seconds"]
        return late and wait in {alarm["name"] for alarm in alarms} and f'wait="{wait}"' in shown

    return named


async def _alarms(stage: Stage) -> list[dict[str, Any]]:
    subject = subjects.event(stage.run_id, "alarm")
    return [json.loads(payload) async for _, payload, _ in read_stream(stage.bus, subjects.EVENTS, subject)]
