"""What others see of a worker: its registration, its live status, its metrics and probes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from sluice.views import WorkerView
from tests.rollout.conftest import StartProcess
from tests.rollout.stage import EngineServer, Stage, eventually
from tests.rollout.test_weight_sync import events
from tests.servers import valkey


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with valkey(tmp_path) as url:
        yield url


async def test_a_worker_is_seen_while_it_lives_and_gone_when_it_leaves(
    stage: Stage, engine: EngineServer, start_process: StartProcess, redis_url: str
) -> None:
    await stage.open()
    await stage.publish(2)
    worker = start_process(engine.url, SLUICE_WORKER_NAME="w1", SLUICE_REDIS_URL=redis_url)
    await stage.offer(*(stage.prompt(n) for n in range(3)))
    await stage.groups(3)
    redis = Redis.from_url(redis_url)

    async def busy() -> dict[str, object]:
        told = json.loads(await redis.get("sluice:worker:w1") or b"{}")
        return told if told.get("tokens_per_second") else {}

    told = await eventually(busy)
    registered = (await stage.workers())["w1"]
    assert set(registered) == set(WorkerView.model_fields)
    assert {k: told[k] for k in ("run", "engine", "version", "in_flight")} == {
        "run": stage.run,
        "engine": engine.url,
        "version": "v2.1",
        "in_flight": 0,
    }
    assert [event["worker"] for event in await events(stage, "worker_joined", 1)] == ["w1"]
    applied = (await events(stage, "weights_applied", 1))[0]
    assert (applied["version"], applied["worker"]) == ("v2.1", "w1")
    assert float(str(applied["seconds"])) > 0
    assert int(str(applied["bytes"])) > 0

    port = re.search(r'"metrics_port": (\d+)', worker.log.read_text())
    assert port is not None
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port[1]}") as client:
        metrics = (await client.get("/metrics")).text
        assert (await client.get("/readyz")).status_code == 200
    assert f'sluice_rollout_groups_total{{run="{stage.run}",status="scored"}} 3.0' in metrics
    assert f'sluice_rollout_policy_version{{run="{stage.run}"}} 2.0' in metrics
    assert f'sluice_rollout_in_flight_groups{{run="{stage.run}"}} 0.0' in metrics

    assert worker.stop() == 0
    assert await stage.workers() == {}
    assert await redis.get("sluice:worker:w1") is None
    await redis.aclose()
