"""kill -9 of real processes in mid-run: the run goes on by itself, and the audit finds nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest

from sluice.client import NoServerError, RunsClient
from sluice.errors import TransientError
from sluice.types import RunState
from sluice.views import EventView
from tests.e2e.local_stack import LocalStack, addition, assert_clean, local_stack, tiny, wait_for, wait_for_steps

pytestmark = [pytest.mark.usefixtures("tiny_model"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with local_stack("kills", "--workers", "2") as running:
        yield running


async def test_killing_every_kind_of_service_in_turn_loses_nothing_and_trains_nothing_twice(stack: LocalStack) -> None:
    section = addition(samples=16, limit=100, every_steps=30, deadline_seconds=200)
    async with stack.client() as client:
        run = await client.create(tiny(section, trainer__total_steps=60, checkpoint__interval=4))
        await kill(stack, await reserved_worker(client, lambda version: version.startswith("v0.")))
        steps = 2
        for command in ("reward-0", "nats", "trainer-0", "valkey"):
            run = await wait_for_steps(client, run.id, steps)
            steps = run.training_steps + 2
            await kill(stack, command)
        worker = await reserved_worker(client, lambda version: not version.startswith("v0."))
        await asyncio.gather(kill(stack, worker.replace("rollout", "engine")), kill(stack, "coordinator"))
        final = await wait_for(client, run.id, RunState.SUCCEEDED, seconds=300)
        evaluations = await client.evaluations(run.id)
        events = [event async for event in client.events(run.id)]
    audit = stack.audit(run.id)
    assert final.training_steps == 60
    assert_clean(audit, trained=60 * 16)
    assert audit["lineages"] >= 2, "the trainer came back under the next lineage"
    assert max(int(staleness) for staleness in audit["staleness_histogram"]) <= 1
    assert [(e.number, e.state, e.reason) for e in evaluations] == [(n, "finished", "") for n in (0, 30, 60)]
    for evaluation in evaluations:
        view = evaluation.sets["addition"]
        assert (view.all.problems, view.all.samples, view.all.failed) == (100, 1600, {})
        assert view.weights.startswith(evaluation.version)
    assert steps_during_evaluation(events, "v0.1") >= 1, "training went on while v0 was evaluated, and its worker died"


async def kill(stack: LocalStack, command: str) -> None:
    """kill -9, and wait until the supervisor has started it again."""
    pid = stack.kill(command)
    await stack.wait_until_restarted(command, pid)


async def reserved_worker(client: RunsClient, wanted: Callable[[str], bool]) -> str:
    """The worker in the middle of an evaluation of a version that is wanted."""
    async with asyncio.timeout(240):
        while True:
            with contextlib.suppress(NoServerError, TransientError):
                for worker in await client.workers():
                    if worker.evaluating and worker.evaluating == worker.version and wanted(worker.version):
                        return worker.name
            await asyncio.sleep(0.1)


def steps_during_evaluation(events: list[EventView], version: str) -> int:
    """Training steps between the begin and the end of an evaluation."""
    told = [event.fields.get("state") if event.fields.get("version") == version else event.kind for event in events]
    return told[told.index("running") : told.index("finished")].count("step")
