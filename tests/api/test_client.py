"""What a program that uses the typed client can rely on."""

from __future__ import annotations

import asyncio

import pytest

from sluice import client as client_module
from sluice.client import NoServerError, RunsClient
from sluice.config import RunSpec
from sluice.errors import ConfigError, TransientError
from sluice.types import RunState
from sluice.views import RunAction
from tests.api.run_shelf import RunShelf, serving
from tests.servers import free_port


async def test_a_run_goes_out_and_comes_back_as_it_was(url: str, spec: RunSpec) -> None:
    async with RunsClient(url) as client:
        run = await client.create(spec, "key")
        assert (await client.create(spec, "key")).id == run.id
        assert run.spec == spec.model_dump(mode="json")
        assert [r.id for r in await client.runs()] == [run.id]
        assert (await client.control(run.id, RunAction.PAUSE, "lunch")).reason == "lunch"
        assert [v.version for v in await client.versions(run.id)] == ["v0.1"]
        assert [c.k for c in await client.checkpoints(run.id)] == [5]
        assert [w.name for w in await client.workers()] == ["rollout-0"]
        assert [g.n for g in await client.groups(run.id, after=2)] == [3, 4]
        assert (await client.group(run.id, 4)).n == 4


async def test_all_steps_come_however_many_pages_they_take(
    url: str, spec: RunSpec, shelf: RunShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 3)
    async with RunsClient(url) as client:
        run = await client.create(spec)
        for k in range(7):
            await shelf.emit(run.id, "batch", step=k, reward_mean=k / 10)
        assert [step.step for step in await client.steps(run.id)] == list(range(7))


async def test_events_go_on_where_they_were_when_the_coordinator_comes_back(spec: RunSpec, shelf: RunShelf) -> None:
    port = free_port()
    seen: list[int] = []
    ready = asyncio.Event()

    async def read(client: RunsClient, run_id: str) -> None:
        async for event in client.events(run_id):
            seen.append(event.id)
            ready.set()

    async with RunsClient(f"http://127.0.0.1:{port}") as client:
        async with serving(shelf, port=port):
            run = await client.create(spec)
            await shelf.emit(run.id, "batch", step=0)
            reader = asyncio.create_task(read(client, run.id))
            await asyncio.wait_for(ready.wait(), 10)
        await shelf.emit(run.id, "step", step=0)
        await asyncio.sleep(0.7)  # at least one attempt meets a closed port
        shelf.change(run.id, state=RunState.SUCCEEDED)
        async with serving(shelf, port=port):
            await asyncio.wait_for(reader, 10)
    assert seen == [1, 2]


async def test_a_coordinator_that_stays_away_is_said_after_a_deadline(
    spec: RunSpec, shelf: RunShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 0.6)
    async with RunsClient(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(TransientError, match=r"was away for 0\.6 s"):
            await asyncio.wait_for(anext(client.events("run-1")), 10)


async def test_faults_are_the_exceptions_that_their_status_means(url: str, spec: RunSpec, shelf: RunShelf) -> None:
    async with RunsClient(url) as client:
        with pytest.raises(ConfigError, match="there is no run 'absent'; GET /v1/runs lists them"):
            await client.get("absent")
        run = await client.create(spec)
        shelf.change(run.id, state=RunState.STOPPED)
        with pytest.raises(ConfigError, match="the run has stopped"):
            await client.control(run.id, RunAction.RESUME)
        shelf.away = True
        with pytest.raises(TransientError, match="SLUICE_NATS_DEADLINE_SECONDS"):
            await client.get(run.id)


async def test_an_address_where_nothing_listens_is_the_callers_fault() -> None:
    async with RunsClient(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(NoServerError, match="no coordinator answers at"):
            await client.runs()
    async with RunsClient("ftp://127.0.0.1") as client:
        with pytest.raises(ConfigError, match="ftp://127"):
            await client.runs()


async def test_a_server_that_is_not_ours_is_named(url: str) -> None:
    async with RunsClient(f"{url}/docs") as client:
        with pytest.raises(ConfigError, match="/docs/v1/runs"):
            await client.runs()
