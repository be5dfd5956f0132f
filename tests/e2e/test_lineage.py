"""What a run leaves that went through all services: batches that train to the same again, checkpoints to go on from."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from services.trainer.replay.comparison import read_tensors
from sluice.cli import main
from sluice.config import parse_run_spec
from sluice.transport.log import ledger_log, trainer_log
from sluice.transport.nats import Bus
from sluice.transport.queues import fetch_rollouts
from sluice.types import Batch, RunState, Version
from sluice.views import RunView
from sluice.weights.fetch import fetch_version
from tests.e2e.local_stack import LocalStack, assert_clean, tiny, wait_for
from tests.trainer.reference import PlainTrainer, distance

pytestmark = [pytest.mark.usefixtures("tiny_model"), pytest.mark.timeout(400)]
STEPS, PROMPTS = 3, 8


@pytest.fixture(scope="module")
def run(stack: LocalStack) -> RunView:
    """A run of a few training steps in float32; with one checkpoint every rollout of it stays, and every version.

    With AdamW's own eps, an element whose gradient is nearly 0 moves by the whole learning rate in a direction that
    rounding decides; with this one it does not, and two sums in another order give the same weights.
    """
    changes: dict[str, Any] = {
        "rollout__group_size": 4,
        "trainer__prompts_per_step": PROMPTS,
        "trainer__updates_per_step": 2,
        "trainer__total_steps": STEPS,
        "optim__eps": 1e-4,
        "weights__keep": STEPS + 1,
    }

    async def train() -> RunView:
        async with stack.client() as client:
            created = await client.create(tiny(**changes))
            await wait_for(client, created.id, RunState.SUCCEEDED)
            return await client.get(created.id)

    with ThreadPoolExecutor(1) as aside:  # the loop of the tests may be running here already
        return aside.submit(asyncio.run, train()).result()


async def versions_of(bus: Bus, run_id: str) -> dict[int, Version]:
    records = [entry.record for entry in await trainer_log(bus, run_id).read()]
    return {record.version.number: record for record in records if isinstance(record, Version)}


async def tensors(record: Version, cache: Path) -> dict[str, Tensor]:
    folder, manifest = await fetch_version(record, cache, 30)
    return read_tensors(folder, manifest)


async def test_the_plain_reference_fed_the_recorded_batches_agrees_with_the_whole_system_step_for_step(
    stack: LocalStack, run: RunView, tmp_path: Path
) -> None:
    async with stack.client() as client:
        steps = await client.steps(run.id)
    bus = await Bus.connect(stack.state.nats_url, "test")
    published = await versions_of(bus, run.id)
    reference = PlainTrainer(parse_run_spec(run.spec or {}), lambda causal: causal, lambda causal: None)
    batches = [e.record for e in await ledger_log(bus, run.id).read() if isinstance(e.record, Batch)]
    assert len(batches) == len(steps) == STEPS
    for batch, step in zip(batches, steps, strict=True):
        assert step.training is not None and step.training.loss is not None and step.training.lr is not None
        wanted = {g.n: g.rollouts for g in batch.groups}
        rollouts = {n: await fetch_rollouts(bus, of_group) for n, of_group in wanted.items()}
        updates = reference.step(batch, rollouts, step.training.lr)
        assert len(updates) == 2
        assert sum(update.loss for update in updates) / 2 == pytest.approx(step.training.loss, abs=1e-5)
        own = {name: p.detach().double().flatten() for name, p in reference.model.named_parameters()}
        assert distance(own, await tensors(published[batch.k + 1], tmp_path)) < 1e-6
    await bus.close()


async def test_a_replay_in_one_process_finds_every_loss_and_every_weight_again(
    stack: LocalStack, run: RunView, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", run.id, "--train", "--json", "--at", stack.state.api_url]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["from"], found["agrees"]) == (0, True)
    assert [row["version"] for row in found["versions"]] == [f"v{number}.1" for number in range(STEPS + 1)]
    assert all(row["hash_equal"] and row["chain_equal"] for row in found["versions"])
    assert all(max(row["differences"].values()) == 0.0 for row in found["versions"][1:])
    assert main(["replay", "nobody-0", "--train", "--nats-url", stack.state.nats_url]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("sluice-trainer: there is no run 'nobody-0'"), "a refusal is its message and nothing beside"


async def test_a_fork_goes_on_from_a_checkpoint_with_what_was_changed_and_outlives_the_run_it_came_from(
    stack: LocalStack, run: RunView, tmp_path: Path
) -> None:
    changes = {"optim": {"lr": 1e-4, "betas": [0.8, 0.9]}, "trainer": {"total_steps": 6}, "filter": {"enable": False}}
    async with stack.client() as client:
        fork = await client.fork(run.id, STEPS, changes)
        final = await wait_for(client, fork.id, RunState.SUCCEEDED, RunState.FAILED)
        assert final.state is RunState.SUCCEEDED, final.reason
        assert (await client.get(run.id)).forks == (fork.id,)
        steps = await client.steps(fork.id)
        mine, theirs = await client.checkpoints(fork.id), await client.checkpoints(run.id)
    assert final.forked_from is not None and (final.forked_from.run, final.forked_from.step) == (run.id, STEPS)
    assert (final.batches, final.training_steps, final.policy_version) == (6, 6, "v6.1")
    assert [(step.step, step.training and step.training.lr) for step in steps] == [(k, 1e-4) for k in range(STEPS, 6)]
    assert [c.k for c in mine] == [STEPS, 5, 6] and mine[0].path != theirs[0].path
    assert_clean(stack.audit(fork.id), trained=(6 - STEPS) * PROMPTS)

    bus = await Bus.connect(stack.state.nats_url, "test")
    begin = (await versions_of(bus, run.id))[STEPS], (await versions_of(bus, fork.id))[STEPS]
    before, after = [await tensors(record, tmp_path) for record in begin]
    await bus.close()
    assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)
    assert begin[0].chain != begin[1].chain, "the chain names the run that goes on too"

    assert await asyncio.to_thread(main, ["delete", run.id, "--at", stack.state.api_url]) == 0
    folders = [Path(stack.state.data) / kind / run.id for kind in ("weights", "checkpoints")]
    async with asyncio.timeout(60):
        while any(folder.exists() for folder in folders):  # a trainer that waits for a run removes them
            await asyncio.sleep(0.2)
    assert_clean(stack.audit(fork.id), trained=(6 - STEPS) * PROMPTS)
