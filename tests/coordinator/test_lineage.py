"""Runs that begin in others, go on without a batch, or are deleted: what a real coordinator writes and refuses."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.coordinator.deletion import sweep
from sluice.telemetry import get_logger
from sluice.transport.log import ledger_log, read_stream, trainer_log
from sluice.transport.nats import Bus
from sluice.types import Batch, DropReason, RunCreated, TrainingFailed
from sluice.wire import subjects
from tests.coordinator.stage import Coordinator, Stage, create, get, spec, wait_for_state

pytestmark = pytest.mark.usefixtures("tiny_model")


async def send(coordinator: Coordinator, method: str, path: str, status: int, body: Any = None) -> dict[str, Any]:
    """The answer, which must have this status."""
    async with httpx.AsyncClient(base_url=coordinator.url, timeout=30) as client:
        answer = await client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def trained_run(coordinator: Coordinator, bus: Bus, steps: int) -> Stage:
    """A run in mid-flight that has a checkpoint of `steps` training steps, and groups beyond it."""
    view = await create(coordinator, spec(trainer__total_steps=8))
    stage = Stage(bus, view["id"])
    await stage.join()
    await wait_for_state(coordinator, stage.run_id, "running")
    while stage.trained < steps:
        await stage.work(most=4)
        await stage.train()
    await stage.checkpoint()
    return stage


async def draws_of(coordinator: Coordinator, run_id: str, numbers: list[int]) -> list[int]:
    return [(await get(coordinator, f"/v1/runs/{run_id}/groups/{n}"))["draw"] for n in numbers]


def settled_before(batches: list[Batch], k: int) -> list[int]:
    """Groups that the batches below k hold, or name as dropped."""
    found = [batch for batch in batches if batch.k < k]
    return [g.n for batch in found for g in batch.groups] + [n for batch in found for n, _ in batch.dropped]


async def test_a_fork_draws_what_its_checkpoint_has_not_settled_once_each_and_a_fork_of_the_fork_goes_on_from_there(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    stage = await trained_run(coordinator, shared_bus, steps=2)
    first = stage.trained
    settled = await draws_of(coordinator, stage.run_id, settled_before(await stage.batches(), first))
    for _ in range(2):
        body = {"changes": {"optim": {"lr": 1e-5}, "trainer": {"total_steps": first + 2}}}
        view = await send(coordinator, "POST", f"/v1/runs/{stage.run_id}/fork", 201, body)
        assert (view["forked_from"]["run"], view["forked_from"]["step"]) == (stage.run_id, first)
        assert (view["spec"]["optim"]["lr"], view["batches"], view["counts"]["issued"]) == (1e-5, first, 0)
        assert view["id"] in (await get(coordinator, f"/v1/runs/{stage.run_id}"))["forks"]
        stage = Stage(shared_bus, view["id"], seed=first, first_step=first)
        await stage.join()
        while stage.trained < first + 2:
            await stage.work()
            await stage.train()
        await stage.checkpoint()
        final = await wait_for_state(coordinator, stage.run_id, "succeeded")
        batches = await stage.batches()
        assert [batch.k for batch in batches] == [first, first + 1]
        assert final["counts"]["issued"] == final["counts"]["trained"] + sum(final["counts"]["dropped"].values())
        settled += await draws_of(coordinator, stage.run_id, settled_before(batches, first + 2))
        first += 2
    assert len(settled) == len(set(settled)), "no draw was settled twice along the line"
    assert set(range(max(settled))) - set(settled) <= await live_draws(coordinator, stage.run_id, batches[-1])


async def live_draws(coordinator: Coordinator, run_id: str, batch: Batch) -> set[int]:
    """What was issued and not settled when the last batch left: dropped as `run_ended` since."""
    live = [n for issue in batch.live for n in range(issue.first, issue.first + issue.count)]
    return set(await draws_of(coordinator, run_id, live))


async def test_another_data_order_begins_at_its_beginning(coordinator: Coordinator, shared_bus: Bus) -> None:
    stage = await trained_run(coordinator, shared_bus, steps=1)
    view = await send(coordinator, "POST", f"/v1/runs/{stage.run_id}/fork", 201, {"changes": {"trainer": {"seed": 7}}})
    assert (view["forked_from"]["draws_again"], view["forked_from"]["next_draw"]) == (0, 0)


async def test_a_fork_that_cannot_be_is_refused_with_what_could(coordinator: Coordinator, shared_bus: Bus) -> None:
    stage = await trained_run(coordinator, shared_bus, steps=1)
    k = stage.trained
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"step": 7}, f"has no checkpoint of training step 7; it has those of [{k}]"),
        ({"changes": {"trainer": {"total_steps": k}}}, f"the checkpoint has {k} of them"),
        ({"changes": {"trainer": {"zero_stage": 1}}}, "trainer.zero_stage = 1: the checkpoint was made with 3"),
        ({"changes": {"trainer": {"totl_steps": 1}}}, "trainer.totl_steps: no such field"),
        ({"steps": 1}, "steps"),
    ]
    for body, words in refusals:
        assert words in (await send(coordinator, "POST", f"/v1/runs/{stage.run_id}/fork", 422, body))["detail"]


async def test_a_run_without_a_checkpoint_cannot_be_forked_and_a_folder_that_is_none_starts_nothing(
    coordinator: Coordinator,
) -> None:
    view = await create(coordinator, spec())
    assert "no checkpoint yet" in (await send(coordinator, "POST", f"/v1/runs/{view['id']}/fork", 409))["detail"]
    body = spec().model_dump(mode="json")
    refused = await send(coordinator, "POST", "/v1/runs?checkpoint=/nowhere/5.1", 422, body)
    assert "/nowhere/5.1 is no checkpoint (No such file or directory)" in refused["detail"]


async def test_a_run_that_failed_on_a_batch_goes_on_without_it_and_its_groups_are_dropped_by_name(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec())
    stage = Stage(shared_bus, view["id"], keep=1.0)
    await stage.join()
    await wait_for_state(coordinator, stage.run_id, "running")
    await stage.work()
    async with asyncio.timeout(20):
        while len(await stage.batches()) < 1:
            await asyncio.sleep(0.1)
    path = f"/v1/runs/{stage.run_id}/resume"
    assert "has failed because" in (await send(coordinator, "POST", path, 409, {"skip_batch": 0}))["detail"]
    await stage.trainer.append(TrainingFailed(1, "the loss of groups [2] is NaN or Inf"))
    await wait_for_state(coordinator, stage.run_id, "failed")
    assert (
        "only batches that are in no published"
        in (await send(coordinator, "POST", path, 422, {"skip_batch": 5}))["detail"]
    )
    await send(coordinator, "POST", path, 200, {"skip_batch": 0, "reason": "a bad row"})
    resumed = await wait_for_state(coordinator, stage.run_id, "running")
    assert resumed["reason"] == "resumed without batch 0: a bad row"
    while stage.trained < 4:
        await stage.work()
        await stage.train()
    await stage.checkpoint()
    final = await wait_for_state(coordinator, stage.run_id, "succeeded")
    batches = await stage.batches()
    assert [batch.k for batch in batches] == [0, 1, 2, 3]
    named = Counter(reason for batch in batches for _, reason in batch.dropped)
    assert named[DropReason.SKIPPED_BATCH] == len(batches[0].groups) == 4
    counts = final["counts"]
    assert (counts["trained"], counts["dropped"]["skipped_batch"]) == (12, 4)
    assert counts["issued"] == counts["trained"] + sum(counts["dropped"].values())
    group = await get(coordinator, f"/v1/runs/{stage.run_id}/groups/{batches[0].groups[0].n}")
    assert (group["state"], group["reason"]) == ("dropped", "skipped_batch")


async def stored(bus: Bus, run_id: str) -> dict[str, list[tuple[int, bytes]]]:
    """Everything that NATS holds of a run, by stream."""
    return {
        stream: [(sequence, payload) async for sequence, payload, _ in read_stream(bus, stream, subject)]
        for stream, subject in subjects.of_run(run_id)
    }


async def test_deleting_a_run_leaves_nothing_of_it_touches_no_other_and_can_be_done_again_when_cut_off(
    coordinator: Coordinator, shared_bus: Bus, data: Path
) -> None:
    other = await trained_run(coordinator, shared_bus, steps=1)
    await send(coordinator, "POST", f"/v1/runs/{other.run_id}/stop", 200)
    await other.train()
    await other.checkpoint()
    await wait_for_state(coordinator, other.run_id, "stopped")
    before = await stored(shared_bus, other.run_id)

    view = await create(coordinator, spec(), key="a-key-of-its-own")
    stage = Stage(shared_bus, view["id"])
    path = f"/v1/runs/{stage.run_id}"
    await stage.join()
    await wait_for_state(coordinator, stage.run_id, "running")
    await stage.work()
    assert "stop it first" in (await send(coordinator, "DELETE", path, 409))["detail"]
    await send(coordinator, "POST", f"{path}/stop", 200)
    await stage.train()
    await stage.checkpoint()
    await wait_for_state(coordinator, stage.run_id, "stopped")
    assert (await stored(shared_bus, stage.run_id))[subjects.GROUPS] != []

    # As one that died after its first steps leaves it: the mark is there, some streams are empty, the ledger is not.
    await (await shared_bus.bucket(subjects.DELETED_BUCKET)).put(stage.run_id, b'{"keep_checkpoints": false}')
    await shared_bus.js.purge_stream(subjects.GROUPS, subject=subjects.groups(stage.run_id))
    assert (await get(coordinator, path))["state"] == "stopped"
    files = {run_id: data / "evaluations" / run_id / "v0.1" / "sums" for run_id in (stage.run_id, other.run_id)}
    for folder in files.values():
        folder.mkdir(parents=True)
    await sweep(shared_bus, data / "evaluations", get_logger("test"))
    assert files[stage.run_id].exists(), "until its ledger is gone a run is there, with all that it has"

    for _ in range(2):
        assert (await send(coordinator, "DELETE", path, 200))["id"] == stage.run_id
        assert all(messages == [] for messages in (await stored(shared_bus, stage.run_id)).values())
        await send(coordinator, "GET", path, 404)
        assert list((data / "evaluations").iterdir()) == [data / "evaluations" / other.run_id]
        files[stage.run_id].mkdir(parents=True, exist_ok=True)  # written late, or where another replica is
    assert stage.run_id not in [run["id"] for run in await get(coordinator, "/v1/runs")]
    async with httpx.AsyncClient(base_url=coordinator.url, timeout=30) as client:
        body = spec().model_dump(mode="json")
        again = await client.post("/v1/runs", json=body, headers={"Idempotency-Key": "a-key-of-its-own"})
    assert again.status_code == 409 and "was deleted" in again.json()["detail"]
    await sweep(shared_bus, data / "evaluations", get_logger("test"))
    assert [folder.exists() for folder in files.values()] == [False, True]
    assert await stored(shared_bus, other.run_id) == before
    await send(coordinator, "DELETE", "/v1/runs/never-was", 404)


async def test_a_checkpoint_that_a_fork_has_yet_to_load_keeps_its_run_from_being_deleted(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    stage = await trained_run(coordinator, shared_bus, steps=1)
    await send(coordinator, "POST", f"/v1/runs/{stage.run_id}/stop", 200)
    await stage.train()
    await stage.checkpoint()
    await wait_for_state(coordinator, stage.run_id, "stopped")
    fork = await send(coordinator, "POST", f"/v1/runs/{stage.run_id}/fork", 201)
    path = f"/v1/runs/{stage.run_id}"
    assert f"run {fork['id']} was forked from it" in (await send(coordinator, "DELETE", path, 409))["detail"]
    created = (await ledger_log(shared_bus, fork["id"]).read())[0].record
    assert isinstance(created, RunCreated) and created.origin is not None
    assert created.origin.checkpoint.k == stage.trained
    assert (await send(coordinator, "DELETE", f"{path}?keep_checkpoints=true", 200))["keep_checkpoints"] is True
    assert await trainer_log(shared_bus, stage.run_id).read() == []
