"""A record that a coordinator cannot read, of a newer release or damaged, concerns its run and no other."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from services.coordinator.loop import UNSCORED_LIMIT
from sluice.transport.bursts import Message
from sluice.transport.log import last_sequence, read_stream
from sluice.transport.nats import Bus
from sluice.types import RunCreated
from sluice.wire import subjects
from sluice.wire.records import encode_ledger
from sluice.wire.v1 import ledger_pb2 as pb
from sluice.wire.v1 import rollouts_pb2
from tests.coordinator.stage import Coordinator, Stage, create, get, post, spec, wait_for_state
from tests.coordinator.test_evaluations import evaluated

pytestmark = pytest.mark.usefixtures("tiny_model")
NEWER = {
    subjects.LEDGER: pb.LedgerRecord(format=9, claim=pb.Claim(coordinator="newer")).SerializeToString(),
    subjects.TRAINER: pb.TrainerRecord(format=9).SerializeToString(),
}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.1)


async def ledger(bus: Bus, run_id: str) -> list[int]:
    return [sequence async for sequence, _, _ in read_stream(bus, subjects.LEDGER, subjects.ledger(run_id))]


async def announced(bus: Bus, run_id: str) -> dict[str, Any]:
    """What trainers and workers are told of the run."""
    return dict(json.loads((await (await bus.bucket(subjects.RUNS_BUCKET)).get(run_id)).value or b"{}"))


def events(bus: Bus, run_id: str) -> AsyncIterator[tuple[int, bytes, datetime]]:
    return read_stream(bus, subjects.EVENTS, subjects.event(run_id, "alarm"))


async def running(coordinator: Coordinator, bus: Bus) -> Stage:
    stage = Stage(bus, (await create(coordinator, spec()))["id"], keep=1.0)
    await stage.join()
    await wait_for_state(coordinator, stage.run_id, "running")
    return stage


async def goes_on(stage: Stage) -> None:
    """It makes another training step."""
    before = stage.trained

    async def trained() -> bool:
        await stage.work()
        await stage.train()
        return stage.trained > before

    await until(trained)


@pytest.mark.parametrize("stream", [subjects.LEDGER, subjects.TRAINER])
async def test_a_run_with_a_record_that_cannot_be_read_is_let_go_named_and_picked_up_by_whoever_can_read_it(
    stream: str, coordinator: Coordinator, shared_bus: Bus
) -> None:
    other, stage = await running(coordinator, shared_bus), await running(coordinator, shared_bus)
    await goes_on(stage)
    subject = (subjects.ledger if stream == subjects.LEDGER else subjects.trainer)(stage.run_id)
    sequence = await shared_bus.publish(subject, NEWER[stream])
    path = f"/v1/runs/{stage.run_id}"

    async def named() -> bool:
        view = await get(coordinator, path)
        return bool(view["problem"]) and (await post(coordinator, f"{path}/pause")).status_code == 409

    await until(named)
    view = await get(coordinator, path)
    assert (view["state"], view["training_steps"]) == ("running", stage.trained), "as it stood before"
    assert (
        f"{stream} sequence {sequence}: " in view["problem"] and "has format 9; this program reads" in view["problem"]
    )
    refused = await post(coordinator, f"{path}/stop")
    assert refused.status_code == 409 and view["problem"] in refused.json()["detail"]

    async def alarmed() -> bool:
        alarms = [json.loads(payload) async for _, payload, _ in events(shared_bus, stage.run_id)]
        return [alarm["error"] for alarm in alarms if alarm.get("alarm") == "run_unreadable"] == [view["problem"]]

    await until(alarmed)

    async def set_aside() -> bool:
        return bool((await announced(shared_bus, stage.run_id)).get("problem") == view["problem"])

    await until(set_aside)
    ends = await last_sequence(shared_bus, subjects.LEDGER, subjects.ledger(stage.run_id))
    await goes_on(other)
    assert await last_sequence(shared_bus, subjects.LEDGER, subjects.ledger(stage.run_id)) == ends, "nobody claims it"

    await shared_bus.js.delete_msg(stream, sequence)  # as if this release could read it
    stage.trainer.last = await last_sequence(shared_bus, subjects.TRAINER, subjects.trainer(stage.run_id))
    await goes_on(stage)
    assert (await get(coordinator, path))["problem"] == ""
    assert "problem" not in await announced(shared_bus, stage.run_id)


async def test_groups_of_which_none_can_be_read_pause_the_run_instead_of_burning_prompts(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    run_id = (await create(coordinator, spec(trainer__prompts_per_step=32)))["id"]
    await Stage(shared_bus, run_id).join()
    await wait_for_state(coordinator, run_id, "running")
    newer = rollouts_pb2.Group(format=9).SerializeToString()
    await shared_bus.publish_all([Message(subjects.group(run_id, n), newer, {}) for n in range(40)])
    paused = await wait_for_state(coordinator, run_id, "paused")
    assert "the newest because it cannot be read (GROUPS sequence" in paused["reason"]
    assert "has format 9" in paused["reason"] and paused["counts"]["dropped"].get("failed", 0) < UNSCORED_LIMIT


async def test_a_run_with_an_evaluation_that_cannot_be_read_is_claimed_once_and_not_every_second(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    run_id = f"{spec().name}-{hashlib.blake2b(b'evaluated', digest_size=8).hexdigest()}"
    sequence = await shared_bus.publish(subjects.evaluations(run_id), b"\xff")
    assert (await create(coordinator, evaluated(), key="evaluated"))["id"] == run_id

    async def named() -> bool:
        return f"EVALUATIONS sequence {sequence}" in (await get(coordinator, f"/v1/runs/{run_id}"))["problem"]

    await until(named)
    stage = await running(coordinator, shared_bus)
    await goes_on(stage)
    assert len(await ledger(shared_bus, run_id)) == 2, "its creation and one claim"


async def test_a_run_of_which_not_even_the_spec_can_be_read_is_listed_and_stands_in_nobodys_way(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    future = json.loads(spec().canonical_json) | {"telepathy": {"enable": True}}
    created = {
        "damaged-1": b"\xff\xff",
        "newer-1": encode_ledger(RunCreated("newer-1", json.dumps(future), "0" * 16)),
    }
    for run_id, payload in created.items():
        await shared_bus.publish(subjects.ledger(run_id), payload)
    listed: dict[str, Any] = {view["id"]: view for view in await get(coordinator, "/v1/runs")}
    assert "LEDGER sequence" in listed["damaged-1"]["problem"] and "telepathy" in listed["newer-1"]["problem"]
    for run_id in created:
        assert (await get(coordinator, f"/v1/runs/{run_id}"))["state"] == "queued"
        assert (await post(coordinator, f"/v1/runs/{run_id}/stop")).status_code == 409
    stage = await running(coordinator, shared_bus)
    await goes_on(stage)
    for run_id in created:
        assert len(await ledger(shared_bus, run_id)) == 1, "nobody has written to it"
