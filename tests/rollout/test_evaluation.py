"""Workers in an evaluation inside a run: reserved, on one policy version, and back in training afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig

from sluice.evaluation.engine import EvaluationEngine
from sluice.evaluation.engine import Sampling as EvaluationSampling
from sluice.transport.evaluations import (
    evaluations_log,
    evaluators,
    publish_evaluation_prompt,
    read_evaluation_groups,
    waiting_evaluation_prompts,
)
from sluice.types import (
    EvaluationBegun,
    EvaluationEnded,
    EvaluationGroup,
    EvaluationOutcome,
    EvaluationPrompt,
    PolicyVersion,
    Sampling,
    VerdictKind,
)
from sluice.wire import subjects
from tests.rollout.conftest import StartProcess, StartWorker
from tests.rollout.stage import NEWLINE, EngineServer, Stage, eventually
from tests.rollout.test_weight_sync import LONG, generating, long_run

V0 = PolicyVersion(0, 1)
SEEDS = (11, 12, 13)
SHORT = Sampling(8, 1.0, 0.7, stop_token_ids=(NEWLINE,))


class Evaluation:
    """The evaluation of v0, as the coordinator of the run would write it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._records = evaluations_log(stage.bus, stage.run)

    async def begin(self, prompts: int, sampling: Sampling = SHORT) -> None:
        """Ask for `prompts` times as many responses as there are SEEDS, all to the same problem."""
        await self._records.append(EvaluationBegun(V0, prompts, prompts * len(SEEDS), "{}"))
        for n in range(prompts):
            changes: dict[str, Any] = {"group_size": len(SEEDS), "sampling": sampling, "data_source": "exact"}
            prompt = self._stage.prompt(n, **changes)
            await publish_evaluation_prompt(self._stage.bus, EvaluationPrompt(V0, prompt, SEEDS))

    async def end(self) -> None:
        await self._records.append(EvaluationEnded(V0, EvaluationOutcome.FINISHED, ""))

    async def groups(self, count: int, seconds: float = 30.0) -> list[EvaluationGroup]:
        """Once there are `count`; each n once."""

        async def enough() -> list[EvaluationGroup]:
            found = await read_evaluation_groups(self._stage.bus, self._stage.run, V0.number)
            return found if len(found) >= count else []

        found: list[EvaluationGroup] = await eventually(enough, seconds)
        assert sorted(group.n for group in found) == list(range(count))
        return found

    async def forget_silent_workers_after(self, seconds: float) -> None:
        """Make the consumer before any worker does, with less patience than it has in service."""
        config = ConsumerConfig(
            durable_name=evaluators(self._stage.run),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=seconds,
            max_deliver=-1,
            max_ack_pending=1_000_000,
            filter_subject=subjects.evaluation_prompts(self._stage.run),
        )
        await self._stage.bus.js.add_consumer(subjects.EVAL_PROMPTS, config)


async def registration(stage: Stage, name: str, **wanted: Any) -> dict[str, Any]:
    """What the worker says of itself, once it says what is wanted."""

    async def said() -> dict[str, Any]:
        found = (await stage.workers()).get(name, {})
        return found if found and all(found[key] == value for key, value in wanted.items()) else {}

    return dict(await eventually(said))


async def test_a_reserved_worker_samples_from_the_evaluated_version_alone_and_goes_back_to_training(
    stage: Stage, engine: EngineServer, start_worker: StartWorker
) -> None:
    await stage.open(filter__enable=False)
    await stage.publish(0)
    await stage.publish(1)  # the same weights under another name
    await start_worker(engine.url)
    await registration(stage, "w1", version="v1.1", evaluating=None)
    evaluation = Evaluation(stage)
    await evaluation.begin(2)
    await registration(stage, "w1", version="v0.1", evaluating="v0.1")
    await stage.offer(stage.prompt(0, min_version=1))

    groups = await evaluation.groups(2)

    assert {group.version for group in groups} == {V0} and all(not group.error for group in groups)
    responses = [response for group in groups for response in group.responses]
    assert len(responses) == 2 * len(SEEDS)
    assert all(r.verdict.kind is VerdictKind.SCORED and r.verdict.extracted for r in responses)
    assert await stage.stored() == {}, "training prompts wait while the worker is reserved"
    await evaluation.end()
    trained = await stage.groups(1)
    assert trained[0].rollouts[0].oldest_version == PolicyVersion(1, 1)
    await registration(stage, "w1", version="v1.1", evaluating=None)
    assert await waiting_evaluation_prompts(stage.bus, stage.run, 0) == set()
    sampled = await _as_sluice_eval_samples(stage, engine)
    assert [[response.text for response in group.responses] for group in groups] == [sampled, sampled]


async def _as_sluice_eval_samples(stage: Stage, engine: EngineServer) -> list[str]:
    offline = EvaluationEngine(engine.url, None, 30.0)
    sampling = EvaluationSampling(SHORT.temperature, SHORT.top_p, SHORT.max_new_tokens, SHORT.stop_token_ids)
    found = await offline.sample(stage.prompt(0).token_ids, sampling, SEEDS)
    await offline.close()
    return [stage.tokenizer.decode(list(response.token_ids)) for response in found]


async def test_when_the_reserved_worker_is_killed_another_one_takes_its_seat_and_no_response_is_made_twice(
    stage: Stage,
    engine: EngineServer,
    endless_engine: EngineServer,
    start_worker: StartWorker,
    start_process: StartProcess,
) -> None:
    await long_run(stage)
    await stage.publish(0)
    await stage.bus.bucket(subjects.LEASES_BUCKET, 5.0)  # a seat falls free sooner than in service
    evaluation = Evaluation(stage)
    await evaluation.forget_silent_workers_after(4.0)
    doomed = start_process(endless_engine.url, SLUICE_WORKER_NAME="doomed")
    await registration(stage, "doomed", version="v0.1")
    await evaluation.begin(3, replace(SHORT, max_new_tokens=LONG, stop_token_ids=()))
    await registration(stage, "doomed", evaluating="v0.1")
    await generating(endless_engine)

    await start_worker(engine.url, "heir")
    await stage.offer(stage.prompt(0))
    trained = await stage.groups(1)
    assert trained[0].worker == "heir", "one seat is one worker: the others go on with training"
    doomed.kill()
    groups = await evaluation.groups(3, 60)

    assert "heir" in {group.worker for group in groups}
    assert all(group.version == V0 and len(group.responses) == len(SEEDS) for group in groups)
    await evaluation.end()
    await registration(stage, "heir", evaluating=None)
