"""A real coordinator process over a real server: what its ledger says, whoever holds the run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from services.coordinator.curriculum import Curriculum
from services.coordinator.draws import Draws
from sluice.audit.findings import Fault
from sluice.audit.recount import audit
from sluice.cli import main
from sluice.data import load_prompts
from sluice.data.prompt_tokens import load_tokenizer
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.transport.queues import PromptQueue, pending_prompts, store_group
from sluice.types import (
    Batch,
    Claim,
    Drop,
    DropReason,
    Issue,
    Lineage,
    PolicyVersion,
    Prompt,
    StateChange,
    TrainingFailed,
)
from sluice.wire import subjects
from sluice.wire.v1 import rollouts_pb2 as pb
from tests.coordinator.stage import ROOT, Coordinator, Stage, create, get, post, spec, wait_for_state
from tests.faults.rollouts import rollouts_of, store_attempt
from tests.servers import NatsServer

pytestmark = pytest.mark.usefixtures("tiny_model")


async def test_a_run_is_queued_until_staffed_then_trains_every_batch_and_succeeds(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec())
    stage = Stage(shared_bus, view["id"])
    assert view["state"] == "queued"
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    while stage.trained < 4:
        await stage.work()
        await stage.train()
    await wait_for_state(coordinator, view["id"], "stopping")
    await stage.checkpoint()
    final = await wait_for_state(coordinator, view["id"], "succeeded")
    batches = await stage.batches()
    assert [batch.k for batch in batches] == [0, 1, 2, 3]
    assert all(len(batch.groups) == 4 for batch in batches)
    assert max(batch.k - entry.version for batch in batches for entry in batch.groups) <= 1
    counts = final["counts"]
    assert counts["issued"] == counts["trained"] + sum(counts["dropped"].values()) + counts["live"]
    assert (counts["trained"], counts["live"]) == (16, 0)
    steps = await get(coordinator, f"/v1/runs/{view['id']}/steps")
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    groups = await get(coordinator, f"/v1/runs/{view['id']}/groups")
    assert {group["state"] for group in groups} == {"trained", "dropped"}
    detail = await get(coordinator, f"/v1/runs/{view['id']}/groups/0")
    assert detail["prompt"].endswith("=") and len(detail["rollouts"]) == 2


async def test_nothing_is_offered_before_its_issue_record_and_prompts_are_functions_of_it(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec())
    stage = Stage(shared_bus, view["id"])
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    prompts = await stage.work(most=8)
    issues = [record for record in await stage.ledger() if isinstance(record, Issue)]
    assert [issue.first for issue in issues] == [0, *[i.first + i.count for i in issues[:-1]]]
    for prompt in prompts:
        (issue,) = [i for i in issues if i.first <= prompt.n < i.first + i.count]
        assert prompt.min_version == issue.version


async def test_a_successor_with_no_memory_finds_the_same_next_batch_and_a_group_that_nobody_can_read_is_dropped_once(
    alone: tuple[list[Coordinator], Bus], nats_server: NatsServer
) -> None:
    coordinators, bus = alone
    view = await create(coordinators[0], spec(trainer__prompts_per_step=8))
    stage = Stage(bus, view["id"], keep=1.0)
    await stage.join()
    await wait_for_state(coordinators[0], view["id"], "running")
    first = await stage.work(most=7)
    await bus.publish(subjects.group(view["id"], 15), b"\xff not a group")

    async def dropped(count: int) -> list[Drop]:
        """DROP records, once there are so many."""
        async with asyncio.timeout(20):
            while len(drops := [r for r in await stage.ledger() if isinstance(r, Drop)]) < count:
                await asyncio.sleep(0.05)
        return drops

    await dropped(1)
    coordinators[0].kill()
    await bus.publish(subjects.group(view["id"], 14), pb.Group(format=9, n=14).SerializeToString())
    coordinators.append(Coordinator(nats_server.url))
    drops = await dropped(2)
    assert [(drop.groups, drop.reason) for drop in drops] == [((15,), DropReason.FAILED), ((14,), DropReason.FAILED)]
    assert "Group of 13 bytes" in drops[0].error and "format 9; this program reads 1 to 2" in drops[1].error
    await stage.work()
    async with asyncio.timeout(20):
        while not await stage.batches():
            await asyncio.sleep(0.1)
    batch = (await stage.batches())[0]
    assert [entry.n for entry in batch.groups] == list(range(8))
    assert {p.n for p in first} <= set(range(16))
    assert next(r for r in reversed(await stage.ledger()) if isinstance(r, Issue)).first == 17, (
        "their slots are refilled"
    )
    claims = [record for record in await stage.ledger() if isinstance(record, Claim)]
    assert len(claims) == 2
    shown = await get(coordinators[1], f"/v1/runs/{view['id']}/groups/15")
    assert (shown["state"], shown["reason"], shown["error"]) == ("dropped", "failed", drops[0].error)
    report = await audit(bus, view["id"])
    assert (report.lost, report.unreadable_groups, report.dropped) == (0, 2, {"failed": 2})
    assert not {Fault.UNREADABLE, Fault.GROUP_MISSING, Fault.REASON, Fault.TALLY} & {f.kind for f in report.findings}
    await post(coordinators[1], f"/v1/runs/{view['id']}/stop")
    await wait_for_state(coordinators[1], view["id"], "stopping")


async def test_a_group_is_shown_with_the_responses_of_its_attempt_until_they_are_purged(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    stage = Stage(shared_bus, (await create(coordinator, spec()))["id"])
    await stage.join()
    await wait_for_state(coordinator, stage.run_id, "running")
    queue = await PromptQueue.join(shared_bus, stage.run_id)
    (delivery,), version = await queue.pull(1, wait_seconds=10), PolicyVersion(0, 1)
    group = await store_attempt(shared_bus, delivery.prompt, version)
    assert len({rollout.sequences for rollout in group.rollouts}) == 1, "they share a message"
    assert await store_group(shared_bus, group)
    tokenizer, path = load_tokenizer(ROOT / spec().model.path), f"/v1/runs/{stage.run_id}/groups/{group.n}"
    said = [
        tokenizer.decode(list(r.token_ids), skip_special_tokens=True)
        for r in rollouts_of(delivery.prompt, version, group.attempt)
    ]
    assert [rollout["text"] for rollout in (await get(coordinator, path))["rollouts"]] == said
    await shared_bus.js.purge_stream(subjects.ROLLOUTS, subject=subjects.rollouts(stage.run_id))
    assert [rollout["text"] for rollout in (await get(coordinator, path))["rollouts"]] == [None, None]


async def test_skips_are_on_record_and_a_successor_goes_on_in_the_same_order(
    alone: tuple[list[Coordinator], Bus], nats_server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinators, bus = alone
    chosen = {"skip_all_correct_after": 1, "return_probability": 0.2}
    run = spec(trainer__total_steps=100, **{f"curriculum__{name}": value for name, value in chosen.items()})
    view = await create(coordinators[0], run)
    stage = Stage(bus, view["id"], keep=0.5)
    await stage.join()
    await wait_for_state(coordinators[0], view["id"], "running")

    async def skipped() -> int:
        return sum(len(record.skipped) for record in await stage.ledger() if isinstance(record, Issue))

    async def work_until_skips(least: int) -> list[Prompt]:
        pulled: list[Prompt] = []
        async with asyncio.timeout(30):
            while await skipped() < least:
                pulled += await stage.work(most=64)
                await stage.train()
        return pulled

    prompts = await work_until_skips(1)
    path = f"/v1/runs/{view['id']}/prompts?limit=1000"
    coordinators[0].kill()
    coordinators.append(Coordinator(nats_server.url))
    prompts += await work_until_skips(await skipped() + 10)

    table = await asyncio.to_thread(load_prompts, run)
    seed, draws = run.trainer.seed, Draws()
    again = Curriculum(run.curriculum, seed, lambda draw: table.draw(draw)[1], table.data_source)
    rows: dict[int, int] = {}
    records = [record for record in await stage.ledger() if isinstance(record, Issue | Drop | Batch)]
    for record in records:
        if isinstance(record, Issue):
            assert again.choose(replace(record, skipped=()), None) == record, "the records before it say who is skipped"
            rows |= {n: table.draw(draw)[1] for n, draw in draws.take(record)}
        again.fold(record)
    assert {prompt.n: prompt.index for prompt in prompts} == {prompt.n: rows[prompt.n] for prompt in prompts}

    told = await get(coordinators[1], path)
    assert (told["draws"], told["rows"]) == (draws.next, len(table))
    shown = {entry["row"]: (entry["skipped"], entry["scored"], entry["accuracy"]) for entry in told["prompts"]}
    assert shown == {row: (s.skipped, s.scored, s.accuracy) for row, s in again.rows.items()}
    assert await asyncio.to_thread(main, ["data", "stats", "--run", view["id"], "--at", coordinators[1].url]) == 0
    printed = capsys.readouterr().out
    assert all(difficulty in printed for difficulty in ("unseen", "mostly_right", "always_right", "without skips"))
    report = await audit(bus, view["id"])
    assert not [finding for finding in report.findings if finding.kind in {Fault.ISSUE_NUMBERS, Fault.TALLY}]


async def test_a_prompt_whose_issue_was_stored_but_never_published_is_published_by_the_successor(
    alone: tuple[list[Coordinator], Bus], nats_server: NatsServer
) -> None:
    coordinators, bus = alone
    view = await create(coordinators[0], spec())
    stage = Stage(bus, view["id"], keep=1.0)
    await stage.join()
    await wait_for_state(coordinators[0], view["id"], "running")
    coordinators[0].kill()
    # As if the predecessor had died between the record and its prompts.
    log = ledger_log(bus, view["id"])
    last = [e.record for e in await log.read() if isinstance(e.record, Issue)][-1]
    await log.append(Issue(last.first + last.count, 2, 0, last.floors))
    lost = {last.first + last.count, last.first + last.count + 1}
    assert not lost & await pending_prompts(bus, view["id"])
    coordinators.append(Coordinator(nats_server.url))
    async with asyncio.timeout(20):
        while not lost <= await pending_prompts(bus, view["id"]):
            await asyncio.sleep(0.1)


async def test_a_run_taken_over_with_other_data_is_paused_until_the_files_are_back(
    alone: tuple[list[Coordinator], Bus], nats_server: NatsServer, tmp_path: Path
) -> None:
    coordinators, bus = alone
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes((ROOT / "configs" / "data" / "tiny_addition.jsonl").read_bytes())
    view = await create(coordinators[0], spec(data__train_files=[str(rows)]))
    stage = Stage(bus, view["id"], keep=1.0)
    await stage.join()
    await wait_for_state(coordinators[0], view["id"], "running")
    coordinators[0].kill()
    kept = rows.read_text().splitlines()
    rows.write_text("\n".join(kept[:-1]) + "\n")

    coordinators.append(Coordinator(nats_server.url))
    paused = await wait_for_state(coordinators[1], view["id"], "paused")
    assert "the prompts have changed since the run was created" in paused["reason"]
    refused = await post(coordinators[1], f"/v1/runs/{view['id']}/resume")
    assert refused.status_code == 409 and "the prompts have changed" in refused.json()["detail"]
    rows.unlink()
    assert len(await stage.work()) == 8, "what was issued is finished and stored meanwhile"

    rows.write_text("\n".join(kept) + "\n")
    back = await wait_for_state(coordinators[1], view["id"], "running")
    assert back["reason"] == "the data set is back"
    while stage.trained < 4:
        await stage.work()
        await stage.train()
    states = [(r.state, r.reason[:20]) for r in await stage.ledger() if isinstance(r, StateChange)]
    assert [state for state, _ in states] == ["running", "paused", "running", "stopping"]


async def test_a_frozen_holder_that_wakes_up_is_refused_and_changes_nothing(
    alone: tuple[list[Coordinator], Bus], nats_server: NatsServer
) -> None:
    coordinators, bus = alone
    view = await create(coordinators[0], spec())
    stage = Stage(bus, view["id"], keep=1.0)
    await stage.join()
    await wait_for_state(coordinators[0], view["id"], "running")
    coordinators[0].freeze()
    coordinators.append(Coordinator(nats_server.url))
    async with asyncio.timeout(30):
        while sum(isinstance(r, Claim) for r in await stage.ledger()) < 2:
            await asyncio.sleep(0.1)
    await stage.work()
    coordinators[0].thaw()
    while stage.trained < 4:
        await stage.work()
        await stage.train()
        await asyncio.sleep(0.1)
    await stage.checkpoint()
    await wait_for_state(coordinators[1], view["id"], "succeeded")
    batches = await stage.batches()
    assert [batch.k for batch in batches] == [0, 1, 2, 3]
    trained = [entry.n for batch in batches for entry in batch.groups]
    assert len(trained) == len(set(trained)) == 16


async def test_a_paused_run_issues_and_emits_nothing_until_it_is_resumed(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec())
    stage = Stage(shared_bus, view["id"], keep=1.0)
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    assert (await post(coordinator, f"/v1/runs/{view['id']}/pause")).json()["state"] == "paused"
    before = len(await stage.ledger())
    await stage.work()
    await asyncio.sleep(0.5)
    assert len(await stage.ledger()) == before
    assert (await post(coordinator, f"/v1/runs/{view['id']}/resume")).json()["state"] == "running"
    async with asyncio.timeout(10):
        while not await stage.batches():
            await asyncio.sleep(0.1)


async def test_stop_settles_what_is_live_and_takes_the_prompts_back(coordinator: Coordinator, shared_bus: Bus) -> None:
    view = await create(coordinator, spec())
    stage = Stage(shared_bus, view["id"])
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    assert (await post(coordinator, f"/v1/runs/{view['id']}/stop")).status_code == 200
    final = await wait_for_state(coordinator, view["id"], "stopped")
    assert await pending_prompts(shared_bus, view["id"]) == set()
    drops = [record for record in await stage.ledger() if isinstance(record, Drop)]
    assert [(len(drop.groups), drop.reason) for drop in drops] == [(8, DropReason.CANCELLED)]
    assert final["counts"]["live"] == 0
    again = await post(coordinator, f"/v1/runs/{view['id']}/resume")
    assert again.status_code == 409 and "stopped" in again.json()["detail"]


async def test_at_the_generation_limit_the_run_pauses_and_names_the_limit_and_the_keep_rate(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    run = spec(filter__gen_batch_size=4, filter__max_generation_batches=2, asynchrony__max_staleness=0)
    view = await create(coordinator, run)
    stage = Stage(shared_bus, view["id"], keep=0.0)
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    await stage.work()
    paused = await wait_for_state(coordinator, view["id"], "paused")
    assert "max_generation_batches = 2" in paused["reason"] and "keep rate" in paused["reason"]
    stage.keep = 1.0
    await post(coordinator, f"/v1/runs/{view['id']}/resume")
    await stage.work()
    async with asyncio.timeout(10):
        while not await stage.batches():
            await asyncio.sleep(0.1)


async def test_a_run_whose_loss_is_not_a_number_fails_with_the_groups_named_and_generates_no_more(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec())
    stage = Stage(shared_bus, view["id"])
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    await stage.trainer.append(TrainingFailed(1, "loss nan; the batch trains groups [0, 1]"))
    failed = await wait_for_state(coordinator, view["id"], "failed")
    assert "groups [0, 1]" in failed["reason"] and failed["counts"]["live"] == 0
    assert await pending_prompts(shared_bus, view["id"]) == set()


async def test_a_trainer_that_keeps_dying_without_a_checkpoint_fails_the_run_and_one_that_makes_them_does_not(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec(retry__max_trainer_restarts=2))
    stage = Stage(shared_bus, view["id"])
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    for lineage in (2, 3):
        await stage.trainer.append(Lineage(lineage, "test", 0))
    await stage.checkpoint()
    for lineage in (4, 5):
        await stage.trainer.append(Lineage(lineage, "test", 0))
    await asyncio.sleep(1.5)
    await wait_for_state(coordinator, view["id"], "running")
    await stage.trainer.append(Lineage(6, "test", 0))
    failed = await wait_for_state(coordinator, view["id"], "failed")
    assert "started again 3 times without a new checkpoint" in failed["reason"]
    assert "retry.max_trainer_restarts = 2" in failed["reason"] and failed["counts"]["live"] == 0


async def test_a_run_past_its_deadline_is_checkpointed_and_fails_with_everything_kept(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec(deadlines__run_seconds=4))
    stage = Stage(shared_bus, view["id"])
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    while not await stage.train():
        await stage.work(4)
    await wait_for_state(coordinator, view["id"], "stopping")
    while await stage.train():
        pass
    await stage.checkpoint()
    failed = await wait_for_state(coordinator, view["id"], "failed")
    assert "deadlines.run_seconds = 4 have passed" in failed["reason"]
    counts = failed["counts"]
    assert counts["issued"] == counts["trained"] + sum(counts["dropped"].values())


async def test_a_verifier_that_fails_on_everything_pauses_the_run_and_is_named(
    coordinator: Coordinator, shared_bus: Bus
) -> None:
    view = await create(coordinator, spec())
    stage = Stage(shared_bus, view["id"])
    stage.verifier_error = "no verifier for data source 'nope'"
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    await stage.work()
    paused = await wait_for_state(coordinator, view["id"], "paused")
    assert "no verifier for data source 'nope'" in paused["reason"]
    assert await stage.batches() == []


def test_a_port_in_use_is_one_line_that_names_the_knob(coordinator: Coordinator) -> None:
    environment = os.environ | {"SLUICE_API_PORT": str(coordinator.port)}
    command = [sys.executable, "-m", "services.coordinator"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and f"SLUICE_API_PORT={coordinator.port}" in done.stderr


async def test_the_same_idempotency_key_creates_one_run_and_refuses_another_spec(coordinator: Coordinator) -> None:
    first = await create(coordinator, spec(), key="k")
    assert (await create(coordinator, spec(), key="k"))["id"] == first["id"]
    with pytest.raises(AssertionError, match="409"):
        await create(coordinator, spec(trainer__total_steps=9), key="k")


async def ids(coordinator: Coordinator) -> set[str]:
    return {run["id"] for run in await get(coordinator, "/v1/runs")}


async def test_a_run_whose_model_or_data_is_missing_is_refused_before_anything_starts(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    before = await ids(coordinator)
    for change in ({"model__path": str(tmp_path)}, {"data__train_files": [str(tmp_path / "none.jsonl")]}):
        with pytest.raises(AssertionError, match=str(tmp_path)):
            await create(coordinator, spec(**change))
    assert await ids(coordinator) == before


async def test_a_run_that_the_rollouts_stream_cannot_hold_is_refused_with_the_knob_named(
    coordinator: Coordinator,
) -> None:
    with pytest.raises(AssertionError, match="SLUICE_ROLLOUTS_BYTES"):
        await create(coordinator, spec(trainer__prompts_per_step=4096, checkpoint__interval=10_000))


async def test_the_target_reward_ends_the_run_early_as_succeeded(coordinator: Coordinator, shared_bus: Bus) -> None:
    view = await create(coordinator, spec(trainer__total_steps=50, trainer__target_reward=0.4))
    stage = Stage(shared_bus, view["id"], keep=0.9)
    await stage.join()
    await wait_for_state(coordinator, view["id"], "running")
    for _ in range(20):
        await stage.work()
        if not await stage.train():
            break
    await wait_for_state(coordinator, view["id"], "stopping")
    await stage.train()
    await stage.checkpoint()
    final = await wait_for_state(coordinator, view["id"], "succeeded")
    assert "target_reward" in final["reason"] and final["batches"] < 20
    changes = [record for record in await stage.ledger() if isinstance(record, StateChange)]
    assert [str(change.state) for change in changes] == ["running", "stopping", "succeeded"]
