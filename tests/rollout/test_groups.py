"""From an offered prompt to a stored group, with a real engine, reward service and NATS server."""

from __future__ import annotations

import pytest

from sluice.transport.queues import Delivery, PromptQueue, fetch_rollouts, queue_depth
from sluice.types import FinishReason, GroupStatus, PolicyVersion, VerdictKind
from sluice.wire.codec import encode_prompt
from tests.rollout.conftest import StartWorker
from tests.rollout.stage import NEWLINE, EngineServer, Stage, eventually


async def test_a_prompt_becomes_a_group_whose_rollouts_are_stored_under_the_hashes_it_names(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    spec = await stage.open(filter__enable=False, reward__overlong_buffer=6)
    await stage.publish(0)
    await start_worker(engine.url)
    await stage.offer(stage.prompt(0), stage.prompt(1, "2+2="))

    groups = await stage.groups(2)

    group = groups[0]
    assert (group.status, len(group.rollouts), group.worker, group.engine) == (
        GroupStatus.SCORED,
        spec.rollout.group_size,
        "w1",
        engine.url,
    )
    rollouts = await fetch_rollouts(stage.bus, group.rollouts)
    for i, (summary, rollout) in enumerate(zip(group.rollouts, rollouts, strict=True)):
        assert (rollout.n, rollout.attempt, rollout.i) == (0, group.attempt, i)
        assert tuple(rollout.prompt_token_ids) == stage.prompt(0).token_ids
        assert len(rollout.token_ids) == len(rollout.logprobs) == summary.length > 0
        assert all(logprob <= 0 for logprob in rollout.logprobs)
        assert {span.version for span in rollout.spans} == {PolicyVersion(0, 1)}
        answer = stage.tokenizer.decode(list(rollout.token_ids)).strip()
        assert (summary.verdict, summary.acc) == (VerdictKind.SCORED, float(answer == "7"))
        stopped = rollout.token_ids[-1] in (1, NEWLINE)
        assert summary.finish_reason == (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert summary.shaping == -max(0, summary.length - 2) / 6
    assert group.sample_text.strip() != ""
    assert await eventually(lambda: _none_left(stage))


async def _none_left(stage: Stage) -> bool:
    return await stage.prompts_left() == 0


async def test_groups_whose_outcomes_are_all_equal_store_no_rollouts(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open()
    await stage.publish(0)
    await start_worker(engine.url)
    await stage.offer(*(stage.prompt(n) for n in range(6)), stage.prompt(6, ground_truth="no sum"))

    groups = await stage.groups(7)

    for group in groups.values():
        kept = len({rollout.acc for rollout in group.rollouts}) > 1
        assert all(bool(rollout.sequences) == bool(rollout.content_hash) == kept for rollout in group.rollouts)
    assert not any(rollout.sequences for rollout in groups[6].rollouts)
    assert any(rollout.sequences for group in groups.values() for rollout in group.rollouts)


async def test_a_failing_verifier_makes_the_group_verifier_failed_and_never_a_zero(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open(reward__verifier=None)
    await stage.publish(0)
    await start_worker(engine.url)
    await stage.offer(stage.prompt(0, data_source="nobody-judges-this"))

    group = (await stage.groups(1))[0]

    assert group.status == GroupStatus.VERIFIER_FAILED
    assert {rollout.verdict for rollout in group.rollouts} == {VerdictKind.ERROR}
    assert not any(rollout.sequences for rollout in group.rollouts)
    assert "nobody-judges-this" in group.error


async def test_a_failed_check_counts_as_wrong_where_the_run_says_so(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open(reward__verifier=None, reward__on_failure="count_wrong", reward__failure_score=-1.0)
    await stage.publish(0)
    await start_worker(engine.url)
    await stage.offer(stage.prompt(0, data_source="nobody-judges-this"))

    group = (await stage.groups(1))[0]

    assert group.status == GroupStatus.SCORED
    assert {(rollout.verdict, rollout.acc, rollout.score) for rollout in group.rollouts} == {
        (VerdictKind.SCORED, 0.0, -1.0)
    }


async def test_a_prompt_that_the_engine_can_never_take_ends_as_a_failed_group_after_max_attempts(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open(rollout__max_attempts=3)
    await stage.publish(0)
    await start_worker(engine.url)
    await stage.offer(stage.prompt(0, token_ids=(5, 999)), stage.prompt(1))

    groups = await stage.groups(2)

    assert groups[0].status == GroupStatus.FAILED
    assert groups[0].rollouts == ()
    assert "token id 999; the vocabulary has 19" in groups[0].error
    assert groups[1].status == GroupStatus.SCORED


async def test_two_workers_that_race_on_one_prompt_store_one_group(
    stage: Stage, engine: EngineServer, endless_engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open(filter__enable=False)
    await stage.publish(0)
    await start_worker(engine.url, "w1", groups=1)
    await start_worker(endless_engine.url, "w2", groups=1)
    await eventually(lambda: _both_serve(stage))
    for n in range(5):  # a republished prompt is a second message: both workers get one
        await stage.offer(stage.prompt(n))
        await stage.bus.js.publish(f"prompts.{stage.run}.{n}", encode_prompt(stage.prompt(n)))

    groups = await stage.groups(5)
    await eventually(lambda: _none_left(stage))

    assert len(await stage.groups(5)) == 5
    assert {group.worker for group in groups.values()} <= {"w1", "w2"}
    for group in groups.values():
        rollouts = await fetch_rollouts(stage.bus, group.rollouts)
        assert {rollout.attempt for rollout in rollouts} == {group.attempt}


async def _both_serve(stage: Stage) -> bool:
    return [worker["version"] for worker in (await stage.workers()).values()] == ["v0.1", "v0.1"]


async def test_a_worker_takes_no_more_groups_than_it_may_hold_and_refills_slots_as_they_free_up(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open()
    await stage.publish(0)
    await start_worker(engine.url, groups=2)
    await stage.offer(*(stage.prompt(n) for n in range(12)))
    seen: list[int] = []

    async def done() -> bool:
        seen.append((await queue_depth(stage.bus, stage.run))[1])
        return await stage.prompts_left() == 0

    await eventually(done)
    assert max(seen) <= 4  # two slots, and at worst the answer to an earlier pull
    assert len(await stage.groups(12)) == 12


async def test_a_queue_that_delivers_more_than_was_asked_for_costs_nothing(
    stage: Stage, engine: EngineServer, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LateQueue(PromptQueue):
        """As after a reconnection, when the answer to an earlier pull arrives too."""

        async def pull(self, most: int, wait_seconds: float = 1.0) -> list[Delivery]:
            return await super().pull(most + 2, wait_seconds)

    monkeypatch.setattr("services.rollout.loop.PromptQueue", LateQueue)
    await stage.open()
    await stage.publish(0)
    await start_worker(engine.url, groups=1)
    await stage.offer(*(stage.prompt(n) for n in range(6)))
    assert len(await stage.groups(6)) == 6
