"""A real coordinator evaluates while a run trains; the test plays trainer, workers and their deaths."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.config import RunSpec
from sluice.transport.evaluations import EvaluationQueue, evaluations_log, store_evaluation_group
from sluice.transport.nats import Bus
from sluice.types import (
    EvaluatedResponse,
    EvaluationBegun,
    EvaluationGroup,
    EvaluationPrompt,
    FinishReason,
    PolicyVersion,
    Verdict,
    VerdictKind,
)
from tests.coordinator.stage import Coordinator, Stage, create, get, spec, wait_for_state
from tests.rollout.stage import eventually
from tests.servers import NatsServer

pytestmark = pytest.mark.usefixtures("tiny_model")


def evaluated(**settings: Any) -> RunSpec:
    """Two problems with four responses each: two prompts an evaluation."""
    chosen = {"name": "sums", "files": ["configs/data/tiny_addition.jsonl"], "limit": 2, "verifier": "exact"}
    changes = {f"evaluation__{name}": value for name, value in settings.items()}
    return spec(evaluation__sets=[chosen], evaluation__samples=4, **changes)


async def respond(bus: Bus, run_id: str, count: int) -> list[EvaluationPrompt]:
    """Answer the next prompts of the evaluation that goes on, as a reserved worker: half of it right."""
    queue = await EvaluationQueue.join(bus, run_id)
    done: list[EvaluationPrompt] = []
    while len(done) < count:
        for delivery in await queue.pull(count - len(done), 1.0):
            asked = delivery.asked
            responses = tuple(
                EvaluatedResponse(
                    str(i), 1, FinishReason.STOP, Verdict(VerdictKind.SCORED, acc, acc, str(i), "exact", 0)
                )
                for i, acc in enumerate((1.0, 1.0, 0.0, 0.0))
            )
            group = EvaluationGroup(run_id, asked.version, asked.prompt.n, responses, "w", "e", 0.1, 0.1)
            await store_evaluation_group(bus, group)
            await delivery.ack()
            done.append(asked)
    return done


async def state_of(coordinator: Coordinator, run_id: str, number: int) -> str:
    found = await get(coordinator, f"/v1/runs/{run_id}/evaluations")
    return str(next((view["state"] for view in found if view["number"] == number), "absent"))


async def until(coordinator: Coordinator, run_id: str, number: int, state: str) -> None:
    async def reached() -> bool:
        return await state_of(coordinator, run_id, number) == state

    await eventually(reached)


async def test_a_successor_goes_on_with_an_evaluation_and_the_run_ends_after_that_of_its_last_version(
    alone: tuple[list[Coordinator], Bus], nats_server: NatsServer
) -> None:
    (first,), bus = alone
    run = await create(first, evaluated())
    run_id, v0 = run["id"], PolicyVersion(0, 1)
    assert run["data"]["evaluation"]["sums"]["problems"] == 2
    first.kill()  # as if it had died between the record of the evaluation's begin and its prompts
    await evaluations_log(bus, run_id).append(EvaluationBegun(v0, 2, 8, "{}"))
    stage = Stage(bus, run_id)
    await stage.join()
    alone[0].append(successor := Coordinator(nats_server.url))
    await wait_for_state(successor, run_id, "running")

    asked = await respond(bus, run_id, 2)
    assert {prompt.version for prompt in asked} == {v0} and {prompt.prompt.index for prompt in asked} == {0, 1}
    await until(successor, run_id, 0, "finished")
    while stage.trained < 4:
        await stage.work()
        await stage.train()
    await until(successor, run_id, 4, "running")
    status = await get(successor, f"/v1/runs/{run_id}")
    assert status["state"] == "running" and status["counts"]["live"] == 0
    await respond(bus, run_id, 2)
    await wait_for_state(successor, run_id, "stopping")
    await stage.checkpoint()
    await wait_for_state(successor, run_id, "succeeded")
    evaluations = await get(successor, f"/v1/runs/{run_id}/evaluations")
    assert [(e["version"], e["state"]) for e in evaluations] == [("v0.1", "finished"), ("v4.1", "finished")]
    assert evaluations[1]["sets"]["sums"]["all"]["metrics"]["avg@4"]["value"] == 0.5
    info = await bus.js.stream_info("EVAL_GROUPS")
    assert info.state.messages == 0, "what is settled leaves nothing behind"


async def test_past_its_deadline_an_evaluation_is_incomplete_and_the_run_goes_on_with_the_newest_that_is_due(
    alone: tuple[list[Coordinator], Bus],
) -> None:
    (coordinator,), bus = alone
    run_id = (await create(coordinator, evaluated(deadline_seconds=3, every_steps=1)))["id"]
    stage = Stage(bus, run_id)
    await stage.join()
    await until(coordinator, run_id, 0, "running")
    await respond(bus, run_id, 1)  # and then the worker dies for good
    while stage.trained < 2:
        await stage.work()
        await stage.train()
    await until(coordinator, run_id, 2, "running")
    before, passed_over, _ = await get(coordinator, f"/v1/runs/{run_id}/evaluations")
    assert (before["state"], before["reason"]) == (
        "incomplete",
        "1 of 2 prompts were answered when evaluation.deadline_seconds = 3 had passed",
    )
    assert before["sets"]["sums"]["all"]["problems"] == 1
    assert passed_over["state"] == "skipped" and "evaluation.max_servers" in passed_over["reason"]
    assert (await get(coordinator, f"/v1/runs/{run_id}"))["state"] == "running"
