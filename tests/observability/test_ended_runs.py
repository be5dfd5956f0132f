"""Nothing stale is shown of a run that a process no longer serves, and what it has counted is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sluice.run_series import KEPT_RUNS, RunSeries
from sluice.transport.nats import Bus
from tests.coordinator.stage import Coordinator, Stage, create, post, spec, wait_for_state
from tests.servers import NatsServer


def test_gauges_go_with_their_run_and_counters_when_eight_more_have_ended() -> None:
    registry = CollectorRegistry()
    series = RunSeries(registry)
    done, level = series.counter("done_total", "Done."), series.gauge("level", "Level.", "tank")
    size, fate = series.histogram("size", "Size.", buckets=(1,)), series.final_gauge("fate", "Fate.")
    runs = [f"run-{i}" for i in range(KEPT_RUNS + 1)]
    for run in runs:
        series.begin(run)
        done.labels(run).inc(3)
        level.labels(run, "a").set(1)
        size.labels(run).observe(2)
        fate.labels(run).set(4)
        series.end(run)
        assert registry.get_sample_value("level", {"run": run, "tank": "a"}) is None
        assert registry.get_sample_value("done_total", {"run": run}) == 3
        assert registry.get_sample_value("fate", {"run": run}) == 4
    assert registry.get_sample_value("done_total", {"run": runs[0]}) is None
    assert registry.get_sample_value("size_sum", {"run": runs[0]}) is None
    assert registry.get_sample_value("fate", {"run": runs[0]}) is None
    assert registry.get_sample_value("size_sum", {"run": runs[1]}) == 2


def test_a_run_that_is_taken_up_again_counts_on() -> None:
    registry = CollectorRegistry()
    series = RunSeries(registry)
    done = series.counter("done_total", "Done.")
    for _ in range(KEPT_RUNS + 2):
        series.begin("again")
        done.labels("again").inc()
        series.end("again")
        series.end("other")
    assert registry.get_sample_value("done_total", {"run": "again"}) == KEPT_RUNS + 2


@pytest.fixture
async def replicas(nats_server: NatsServer, tiny_model: object) -> AsyncIterator[tuple[Coordinator, Coordinator, Bus]]:
    """Two coordinators; the first holds what is created before the second could try."""
    first, second = Coordinator(nats_server.url), Coordinator(nats_server.url)
    bus = await Bus.connect(nats_server.url, "test", deadline_seconds=10)
    yield first, second, bus
    await bus.close()
    for coordinator in (first, second):
        coordinator.thaw()
        coordinator.kill()


async def value(coordinator: Coordinator, name: str, **labels: str) -> float | None:
    """What a coordinator shows of a metric, or None when it shows nothing."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"{coordinator.url}/metrics")).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return next((s.value for s in samples if s.name == name and s.labels == labels), None)


async def until(coordinator: Coordinator, wanted: float | None, name: str, **labels: str) -> None:
    async with asyncio.timeout(20):
        while await value(coordinator, name, **labels) != wanted:
            await asyncio.sleep(0.1)


async def test_a_coordinator_that_loses_its_lease_shows_nothing_of_the_run_and_the_next_one_does(
    replicas: tuple[Coordinator, Coordinator, Bus],
) -> None:
    first, second, bus = replicas
    run = (await create(first, spec()))["id"]
    stage = Stage(bus, run, keep=1.0)
    await stage.join()
    await wait_for_state(first, run, "running")
    held = [await value(coordinator, "sluice_lease_held", run=run) for coordinator in (first, second)]
    assert sorted(held, key=str) == [1.0, None]
    holder, other = (first, second) if held[0] else (second, first)

    holder.freeze()
    await until(other, 1.0, "sluice_lease_held", run=run)
    await until(other, 1.0, "sluice_run_state", run=run, state="running")
    assert await value(other, "sluice_claims_total", run=run) == 1.0
    holder.thaw()
    await until(holder, None, "sluice_lease_held", run=run)
    assert await value(holder, "sluice_run_state", run=run, state="running") is None
    assert await value(holder, "sluice_groups_in_flight", run=run) is None
    assert await value(holder, "sluice_claims_total", run=run) == 1.0

    await post(other, f"/v1/runs/{run}/stop")
    await stage.checkpoint()
    await until(other, 1.0, "sluice_runs_ended_total", state="stopped")
    await until(other, None, "sluice_lease_held", run=run)
    assert await value(other, "sluice_run_state", run=run, state="stopped") == 1.0
    assert await value(other, "sluice_run_state", run=run, state="running") == 0.0
    assert await value(holder, "sluice_run_state", run=run, state="running") is None
