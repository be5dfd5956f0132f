"""A part that is stuck is named, with how long it has been, in the run's status, in a metric and in an alarm."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.audit import audit
from sluice.transport.log import read_stream
from sluice.transport.nats import Bus
from sluice.transport.queues import pending_prompts
from sluice.views import RunAction
from sluice.wire import subjects
from tests.coordinator.stage import Coordinator, Stage, create, get, post, spec, wait_for_state
from tests.faults.conftest import StartCoordinator
from tests.faults.work import Hands, batches, finish, issued, trained, until
from tests.local.processes import supervised, valkey
from tests.servers import free_port


@pytest.fixture
async def redis_url(tmp_path: Path) -> AsyncIterator[str]:
    port = free_port()
    async with supervised([valkey("redis", port, tmp_path / "redis")], tmp_path / "logs"):
        yield f"redis://127.0.0.1:{port}/0"


async def test_whoever_is_stuck_is_named_in_the_status_a_metric_and_an_alarm(
    bus: Bus, nats_url: str, redis_url: str, start_coordinator: StartCoordinator
) -> None:
    coordinator = start_coordinator(nats_url, SLUICE_REDIS_URL=redis_url)
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
    assert await issued(stage) == 4, "nothing is generated for a trainer that is behind"


async def test_a_full_stream_of_prompts_and_a_coordinator_that_falls_behind_cost_time_and_nothing_else_and_stop_nobody(
    bus: Bus, nats_url: str, redis_url: str, start_coordinator: StartCoordinator
) -> None:
    coordinator = start_coordinator(nats_url, SLUICE_REDIS_URL=redis_url)
    config = (await bus.js.stream_info(subjects.PROMPTS)).config
    await bus.js.update_stream(config, max_msgs=3)
    stage = Stage(bus, (await create(coordinator, spec()))["id"])
    await stage.join()
    hands = Hands(stage)
    await hands.hold(0, 1, 2)  # more does not fit, although 8 are issued
    await until(_shown(coordinator, stage, "prompt_room"), "PROMPTS has no room")
    assert await _asked(coordinator, stage, RunAction.PAUSE) == "paused"
    assert (await audit(bus, stage.run_id)).lost == 0, "what is issued and not offered yet is not lost"
    assert await _asked(coordinator, stage, RunAction.RESUME) == "running"
    other = Stage(bus, (await create(coordinator, spec()))["id"])
    await other.join()
    await until(_shown(coordinator, other, "prompt_room"), "PROMPTS has no room because of another run")
    assert await issued(other) == 8 and await _asked(coordinator, other, RunAction.STOP) == "stopped"
    coordinator.freeze()
    await hands.store(2, 0, 1)
    coordinator.thaw()
    await finish(stage, 4)
    await wait_for_state(coordinator, stage.run_id, "succeeded")
    assert len(await trained(stage)) == 16
    assert await pending_prompts(bus, other.run_id) == set(), "there is room now, and nobody wants them any more"
    async with httpx.AsyncClient() as client:
        shown = (await client.get(f"{coordinator.url}/metrics")).text
    assert re.search(r"^sluice_nats_retries_total [1-9]", shown, re.MULTILINE), "it says that it was held back"


async def _asked(coordinator: Coordinator, stage: Stage, action: RunAction) -> str:
    """The state of the run after this request, which must be answered at once."""
    begun = time.monotonic()
    answer = await post(coordinator, f"/v1/runs/{stage.run_id}/{action}")
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - begun < 2.0
    return str(answer.json()["state"])


def _named(coordinator: Coordinator, stage: Stage, wait: str) -> Callable[[], Awaitable[bool]]:
    """Whether all three speak of this wait, past its deadline."""

    async def named() -> bool:
        alarms = {alarm["name"]: alarm for alarm in await _alarms(stage)}
        late = wait in alarms and alarms[wait]["seconds"] > alarms[wait]["deadline_seconds"]
        return late and await _shown(coordinator, stage, wait)()

    return named


def _shown(coordinator: Coordinator, stage: Stage, wait: str) -> Callable[[], Awaitable[bool]]:
    """Whether the status and a metric speak of this wait."""

    async def shown() -> bool:
        view = await get(coordinator, f"/v1/runs/{stage.run_id}")
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(f"{coordinator.url}/metrics")).text
        return wait in {w["name"] for w in view["waits"]} and f'wait="{wait}"' in metrics

    return shown


async def _alarms(stage: Stage) -> list[dict[str, Any]]:
    subject = subjects.event(stage.run_id, "alarm")
    return [json.loads(payload) async for _, payload, _ in read_stream(stage.bus, subjects.EVENTS, subject)]
