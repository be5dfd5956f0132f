"""kill -9 of real processes in mid-run: the run goes on by itself, and the audit finds nothing lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.types import RunState
from tests.e2e.local_stack import LocalStack, assert_clean, local_stack, tiny, wait_for, wait_for_steps

pytestmark = [pytest.mark.usefixtures("tiny_model"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with local_stack("kills", "--workers", "2") as running:
        yield running


async def test_killing_every_kind_of_service_in_turn_loses_nothing_and_trains_nothing_twice(stack: LocalStack) -> None:
    async with stack.client() as client:
        run = await client.create(tiny(trainer__total_steps=60, checkpoint__interval=4))
        steps = 2
        for command in ("rollout-0", "reward-0", "engine-1", "trainer-0", "coordinator"):
            run = await wait_for_steps(client, run.id, steps)
            steps = run.training_steps + 2
            pid = stack.kill(command)
            await stack.wait_until_restarted(command, pid)
        final = await wait_for(client, run.id, RunState.SUCCEEDED, seconds=300)
    audit = stack.audit(run.id)
    assert final.training_steps == 60
    assert_clean(audit, trained=60 * 16)
    assert audit["lineages"] >= 2, "the trainer came back under the next lineage"
    assert max(int(staleness) for staleness in audit["staleness_histogram"]) <= 1
