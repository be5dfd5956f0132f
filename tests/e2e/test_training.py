"""A real model learns, through all the real services, and everybody's books agree."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import main
from sluice.evaluation_views import RunEvaluationView
from sluice.transport.log import ledger_log, trainer_log
from sluice.transport.nats import Bus
from sluice.types import Issue, RunState, Version
from sluice.views import RunAction
from tests.e2e.local_stack import LocalStack, addition, assert_clean, tiny, wait_for, wait_for_steps

pytestmark = [pytest.mark.usefixtures("tiny_model"), pytest.mark.timeout(400)]


async def test_the_reward_over_all_sampled_groups_rises_and_so_does_an_evaluation(
    stack: LocalStack, tmp_path: Path
) -> None:
    async with stack.client() as client:
        best = {"checkpoint__interval": 10, "checkpoint__keep_best": "addition/avg@8"}
        run = await client.create(tiny(addition(every_steps=10), trainer__total_steps=40, **best))
        final = await wait_for(client, run.id, RunState.SUCCEEDED, RunState.FAILED)
        steps = await client.steps(run.id)
        evaluations = await client.evaluations(run.id)
        events = [event async for event in client.events(run.id)]
    assert final.state is RunState.SUCCEEDED
    rewards = [step.batch.reward_mean or 0.0 for step in steps]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.08
    assert [step.step for step in steps] == list(range(40))
    assert all(step.training is not None and step.training.groups == 16 for step in steps)
    assert_clean(stack.audit(run.id), trained=40 * 16)
    assert [(e.version, e.state) for e in evaluations] == [(f"v{k}.1", "finished") for k in (0, 10, 20, 30, 40)]
    before, *later = [evaluation.scores["addition/avg@8"] for evaluation in evaluations]
    assert max(later) > before + 0.08
    best_one = evaluations[1 + later.index(max(later))]
    await asyncio.to_thread(_check_best, stack, run.id, best_one, tmp_path / "best")
    told = [event.fields.get("state") for event in events if event.kind == "evaluation"]
    assert "generation_paused" in told, "its only worker is reserved"
    for evaluation in (evaluations[0], evaluations[-1]):
        folder = stack.data / "evaluations" / run.id / evaluation.version / "addition"
        assert json.loads((folder / "summary.json").read_text()) == evaluation.sets["addition"].model_dump(mode="json")
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        assert {(s["problem"], s["sample"]) for s in samples} == {(p, i) for p in range(32) for i in range(8)}
        assert {s["weight_version"] for s in samples} == {evaluation.version}


def _check_best(stack: LocalStack, run_id: str, best: RunEvaluationView, out: Path) -> None:
    """The checkpoint of the best evaluation is there, beside the newest two, and so are its weights."""
    kept = {folder.name for folder in (stack.data / "checkpoints" / run_id).glob("[0-9]*")}
    assert kept == {"30.1", "40.1", f"{best.number}.1"}
    assert (stack.data / "checkpoints" / run_id / "best").resolve().name == f"{best.number}.1"
    assert main(["export", run_id, "--best", "--out", str(out), "--at", stack.state.api_url]) == 0
    assert json.loads((out / "sluice_manifest.json").read_text())["version"] == best.version


async def test_on_policy_runs_generate_nothing_while_the_trainer_holds_the_batch(stack: LocalStack) -> None:
    async with stack.client() as client:
        run = await client.create(tiny(trainer__total_steps=5, asynchrony__max_staleness=0))
        await wait_for(client, run.id, RunState.SUCCEEDED)
        steps = await client.steps(run.id)
    assert all(set(step.batch.staleness) == {"0"} for step in steps)
    bus = await Bus.connect(stack.state.nats_url, "test")
    issued = [e for e in await ledger_log(bus, run.id).read() if isinstance(e.record, Issue)]
    published = {
        e.record.version.number: e.time for e in await trainer_log(bus, run.id).read() if isinstance(e.record, Version)
    }
    await bus.close()
    for entry in issued:
        assert isinstance(entry.record, Issue)
        assert entry.time > published[entry.record.version]
    assert stack.audit(run.id)["staleness_histogram"] == {"0": 5 * 16 * 8}


async def test_weights_over_grpc_train_as_well_and_no_worker_reads_a_shared_path(stack: LocalStack) -> None:
    async with stack.client() as client:
        run = await client.create(tiny(trainer__total_steps=4, weights__transport="grpc"))
        await wait_for(client, run.id, RunState.SUCCEEDED)
        versions = await client.versions(run.id)
    assert all(version.uri.startswith("grpc://") for version in versions)
    assert_clean(stack.audit(run.id), trained=4 * 16)


async def test_the_logs_tell_the_life_of_a_group_across_the_services(stack: LocalStack) -> None:
    async with stack.client() as client:
        run = await client.create(tiny(trainer__total_steps=2))
        await wait_for(client, run.id, RunState.SUCCEEDED)
        trained = next(group.n for group in await client.groups(run.id) if group.batch == 0)
    lines = stack.logs(run.id, "--group", str(trained))
    told = {line["event"]: line for line in lines}
    assert {event: line["service"] for event, line in told.items()} == {
        "group_stored": "rollout",
        "group_kept": "coordinator",
        "batch_emitted": "coordinator",
        "step": "trainer",
    }
    assert {line["run"] for line in lines} == {run.id} and len(lines) == 4
    assert told["group_stored"]["policy_version"].startswith("v0.")
    assert len(set(told["group_stored"]["rewards"])) > 1  # it was kept: its rollouts did not all do equally well
    assert (told["step"]["step"], told["step"]["policy_version"][:3]) == (0, "v1.")


async def test_a_run_can_be_judged_again_by_another_verifier_and_another_rule(
    stack: LocalStack, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stack.client() as client:
        run = await client.create(tiny(trainer__total_steps=2))
        await wait_for(client, run.id, RunState.SUCCEEDED)
        group = await client.group(run.id, next(g.n for g in await client.groups(run.id) if g.state == "trained"))
    assert all(rollout.text is not None for rollout in group.rollouts)

    def replayed(*options: str) -> dict[str, Any]:
        assert main(["replay", run.id, "--json", "--at", stack.state.api_url, *options]) == 0
        changes: dict[str, Any] = json.loads(capsys.readouterr().out)
        return changes

    same = await asyncio.to_thread(replayed, "--verifier", "exact")
    assert same["rollouts_judged"] >= 2 * 16 * 8 and same["groups"] >= 2 * 16
    assert (same["wrong_to_right"], same["right_to_wrong"], same["decisions"]) == (0, 0, {})
    other = await asyncio.to_thread(replayed, "--verifier", "multiple_choice")
    assert other["rollouts_judged"] == same["rollouts_judged"]
    assert other["right_to_wrong"] > 0 or other["failed"] > 0
    everything = await asyncio.to_thread(replayed, "--no-filter")
    assert everything["kept_after"] == everything["groups"] >= everything["kept_before"] >= 2 * 16


async def test_pause_stops_the_steps_resume_goes_on_and_stop_ends_with_nothing_lost(stack: LocalStack) -> None:
    async with stack.client() as client:
        run = await client.create(tiny(trainer__total_steps=400))
        await wait_for_steps(client, run.id, 2)
        await client.control(run.id, RunAction.PAUSE)
        paused = await wait_for(client, run.id, RunState.PAUSED)
        await client.control(run.id, RunAction.RESUME)
        await wait_for_steps(client, run.id, paused.batches + 2)
        await client.control(run.id, RunAction.STOP, "seen enough")
        final = await wait_for(client, run.id, RunState.STOPPED)
        checkpoints = await client.checkpoints(run.id)
    assert final.reason == "seen enough" and final.counts.live == 0
    assert checkpoints[-1].k == final.batches == final.training_steps
    assert_clean(stack.audit(run.id), trained=final.batches * 16)


async def test_rounds_mode_trains_on_policy_and_calls_the_rest_surplus(stack: LocalStack) -> None:
    spec = tiny(
        trainer__total_steps=3,
        asynchrony__max_staleness=0,
        filter__mode="rounds",
        filter__gen_batch_size=24,
    )
    async with stack.client() as client:
        run = await client.create(spec)
        final = await wait_for(client, run.id, RunState.SUCCEEDED)
    assert final.counts.issued % 24 == 0
    assert final.counts.dropped["surplus"] > 0
    assert_clean(stack.audit(run.id), trained=3 * 16)
