"""The evaluations of a run in the hands of the coordinator that holds it: what `loop.py` can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
from nats.js.errors import APIError

from services.coordinator.evaluation.loop import evaluate
from services.coordinator.evaluation.sets import LoadedSet, Piece, load_sets, prompt_of, samples_of, write_files
from services.coordinator.run import Run
from sluice.cancellation import end_tasks
from sluice.errors import ConfigError, FencedError, TransientError, WireError
from sluice.evaluation.samples import Sample
from sluice.evaluation_views import EvaluationView, RunEvaluationView
from sluice.transport.evaluations import (
    clear_evaluation,
    evaluations_log,
    publish_evaluation_prompt,
    read_evaluation_groups,
    stored_evaluation_groups,
    waiting_evaluation_prompts,
)
from sluice.transport.log import Entry
from sluice.transport.queues import publish_event
from sluice.types import (
    EvaluationBegun,
    EvaluationEnded,
    EvaluationGroup,
    EvaluationOutcome,
    EvaluationRecord,
    PolicyVersion,
    RunState,
)

POLL_SECONDS = 0.5
PARALLEL_PUBLISHES = 32
RETRY_SECONDS = 2.0
UNREACHABLE = (TransientError, TimeoutError, nats.errors.Error, APIError)


class RunEvaluation:
    """Implements `loop.Evaluation`.

    Args:
        folder: where files go, as RUN/VERSION/SET; None: nowhere.
    """

    def __init__(self, run: Run, folder: Path | None) -> None:
        self._run, self._folder = run, folder
        self._state = run.evaluating
        self._records = evaluations_log(run.bus, run.id)
        self._sets: list[LoadedSet] = []
        self._pieces: list[Piece] = []
        self._versions: list[PolicyVersion] = []

    @property
    def running(self) -> bool:
        return self._state.history.running is not None

    async def take_over(self) -> None:
        """Read the records to their end, and offer again what nobody has of an evaluation that goes on."""
        for entry in await self._records.read():
            self._state.history.fold(entry)
        for view in self._state.history.views.values():
            self._run.metrics.evaluations.show(self._run.id, view)
        if (running := self._state.history.running) is not None:
            try:
                await self._load()
            except ConfigError as error:
                await self._settle(running.version, EvaluationOutcome.INCOMPLETE, str(error))
                return
            await self._offer(running.version)

    async def pass_over(self) -> None:
        for version in self._due()[:-1]:
            reason = (
                "a newer version was due before this one could be evaluated: the evaluation before took too long; "
                "raise evaluation.max_servers or evaluation.every_steps"
            )
            await self._settle(version, EvaluationOutcome.SKIPPED, reason)

    def next(self) -> PolicyVersion | None:
        due = self._due()
        return due[0] if due and self._run.history.state is RunState.RUNNING else None

    async def begin(self, version: PolicyVersion) -> None:
        try:
            await self._load()
        except ConfigError as error:
            await self._settle(version, EvaluationOutcome.SKIPPED, str(error))
            return
        weights = self._weights(version)
        settings = {chosen.name: chosen.identity(weights) for chosen in self._sets}
        responses = sum(len(piece.samples) for piece in self._pieces)
        self._state.done = 0
        await self._append(EvaluationBegun(version, len(self._pieces), responses, json.dumps(settings)))
        self._run.log.info("evaluation_begun", version=str(version), responses=responses)
        await self._tell(version)
        await self._offer(version)

    async def look(self) -> None:
        assert self._state.history.running is not None
        version = self._state.history.running.version
        self._state.done = len(await stored_evaluation_groups(self._run.bus, self._run.id, version.number))
        self._run.metrics.evaluations.progress(self._run.id, self._state.done / max(len(self._pieces), 1))

    def over(self) -> tuple[EvaluationOutcome, str] | None:
        running, state = self._state.history.running, self._run.history.state
        assert running is not None
        limit = self._run.history.spec.evaluation.deadline_seconds
        answered = f"{self._state.done} of {running.begun.prompts} prompts were answered"
        if self._state.done >= running.begun.prompts:
            return EvaluationOutcome.FINISHED, ""
        if state.terminal or state is RunState.STOPPING:
            return EvaluationOutcome.INCOMPLETE, f"{answered} when the run ended: {self._run.history.reason}"
        if (datetime.now(UTC) - running.at).total_seconds() >= limit:
            return EvaluationOutcome.INCOMPLETE, f"{answered} when evaluation.deadline_seconds = {limit:g} had passed"
        return None

    async def end(self, outcome: EvaluationOutcome, reason: str) -> None:
        """Count what there is, write the files, then store the record: until then a successor would do all of it."""
        assert self._state.history.running is not None
        version = self._state.history.running.version
        groups = await read_evaluation_groups(self._run.bus, self._run.id, version.number)
        groups = [group for group in groups if group.version == version and group.n < len(self._pieces)]
        failed = [group for group in groups if group.error]
        if outcome is EvaluationOutcome.FINISHED and (failed or len(groups) < len(self._pieces)):
            missing = len(self._pieces) - len(groups) + len(failed)
            why = failed[0].error if failed else "their groups could not be read"
            outcome, reason = EvaluationOutcome.INCOMPLETE, f"{missing} of {len(self._pieces)} prompts failed: {why}"
        views = await asyncio.to_thread(self._count, version, groups)
        results = json.dumps({name: view.model_dump(mode="json") for name, view in views.items()})
        await self._settle(version, outcome, reason, results)

    async def give_up(self, reason: str) -> None:
        """Settle whatever is due, without results: something is wrong that no second try would mend."""
        running = self._state.history.running
        outcome = EvaluationOutcome.SKIPPED if running is None else EvaluationOutcome.INCOMPLETE
        for version in self._due() if running is None else [running.version]:
            await self._settle(version, outcome, reason)

    async def rest(self) -> None:
        await asyncio.sleep(POLL_SECONDS)

    # ---------------------------------------------------------------- helpers

    def _due(self) -> list[PolicyVersion]:
        for view in self._run.history.versions[len(self._versions) :]:
            self._versions.append(PolicyVersion.parse(view.version))
        return self._state.history.due(self._versions, self._state.last)

    async def _load(self) -> None:
        """Raises: ConfigError: a set cannot be read, or has changed since the run was created."""
        if not self._sets:
            recorded = self._run.history.data_manifest.get("evaluation", {})
            self._sets = await load_sets(self._run.history.spec, recorded)
            self._pieces = [piece for chosen in self._sets for piece in chosen.pieces()]

    async def _offer(self, version: PolicyVersion) -> None:
        """Publish the prompts that neither wait nor are answered; a worker stores a group before it acks its prompt."""
        bus, run_id = self._run.bus, self._run.id
        there = await waiting_evaluation_prompts(bus, run_id, version.number)
        there |= await stored_evaluation_groups(bus, run_id, version.number)
        room = asyncio.Semaphore(PARALLEL_PUBLISHES)

        async def publish(n: int, piece: Piece) -> None:
            async with room:
                await publish_evaluation_prompt(bus, prompt_of(piece, run_id, n, version))

        await asyncio.gather(*(publish(n, piece) for n, piece in enumerate(self._pieces) if n not in there))

    def _count(self, version: PolicyVersion, groups: Iterable[EvaluationGroup]) -> dict[str, EvaluationView]:
        model = f"{Path(self._run.history.spec.model.path).name}-{version}"
        samples = samples_of(self._pieces, groups)
        views = {s.name: s.view(model, self._weights(version), samples[s.name]) for s in self._sets if samples[s.name]}
        for name, view in views.items():
            self._write(version, name, view, samples[name])
        return views

    def _write(self, version: PolicyVersion, name: str, view: EvaluationView, samples: list[Sample]) -> None:
        """What cannot be written is said, and is in the records all the same."""
        if self._folder is None:
            return
        try:
            write_files(self._folder / self._run.id / str(version) / name, view, samples)
        except ConfigError as error:
            self._run.log.warning("evaluation_not_written", version=str(version), error=str(error))

    def _weights(self, version: PolicyVersion) -> str:
        """As `sluice eval` names the weights of a published version."""
        announced = {view.version: view.manifest_hash for view in self._run.history.versions}
        return f"{version} {announced[str(version)]}"

    async def _settle(
        self, version: PolicyVersion, outcome: EvaluationOutcome, reason: str, results_json: str = ""
    ) -> None:
        await self._append(EvaluationEnded(version, outcome, reason, results_json))
        view = await self._tell(version)
        self._run.metrics.evaluations.show(self._run.id, view)
        self._run.metrics.evaluations.count(self._run.id, view)
        say = self._run.log.info if outcome is EvaluationOutcome.FINISHED else self._run.log.warning
        say("evaluation_ended", version=str(version), outcome=str(outcome), reason=reason, scores=_main_scores(view))
        await clear_evaluation(self._run.bus, self._run.id, version.number)

    async def _append(self, record: EvaluationRecord) -> None:
        sequence = await self._records.append(record)
        self._state.history.fold(Entry(sequence, record, datetime.now(UTC)))

    async def _tell(self, version: PolicyVersion) -> RunEvaluationView:
        view = self._state.history.views[version.number]
        await publish_event(self._run.bus, self._run.id, "evaluation", event_of(view))
        return view


def event_of(view: RunEvaluationView) -> dict[str, Any]:
    """The `evaluation` event: what people and trackers are told; the whole is in the API."""
    fields = view.model_dump(mode="json", include={"number", "version", "state", "reason", "responses"})
    if view.begun_at and view.ended_at:
        fields["seconds"] = round((view.ended_at - view.begun_at).total_seconds(), 3)
    return fields | {"scores": view.scores, "intervals": view.intervals}


def _main_scores(view: RunEvaluationView) -> dict[str, float]:
    return {name: round(value, 4) for name, value in view.main_scores.items()}


@asynccontextmanager
async def evaluating(run: Run, folder: Path | None, broken: Callable[[BaseException], None]) -> AsyncIterator[None]:
    """See to the run's evaluations while inside; what goes on when the run has ended is settled at the exit.

    Args:
        broken: told when another coordinator has taken the evaluations over, or this one cannot read a record of them;
            either ends this holder.
    """
    if not run.history.spec.evaluation.sets:
        yield
        return
    evaluation = RunEvaluation(run, folder)
    task = asyncio.create_task(_keep_evaluating(evaluation, run, broken), name="evaluations")
    try:
        yield
    finally:
        await end_tasks([task])
        if run.history.state.terminal and evaluation.running and run.bus.nc.is_connected:
            await evaluation.end(EvaluationOutcome.INCOMPLETE, f"the run ended: {run.history.reason}")


async def _keep_evaluating(evaluation: RunEvaluation, run: Run, broken: Callable[[BaseException], None]) -> None:
    while True:
        try:
            await evaluation.take_over()
            await evaluate(evaluation)
        except (FencedError, WireError) as error:
            broken(error)
            return
        except UNREACHABLE as error:
            run.log.warning("evaluation_interrupted", error=str(error))
        except Exception as error:
            # Whatever is wrong with an evaluation, it must not end the run that it is about.
            run.log.error("evaluation_failed", error=str(error), exc_info=True)
            await _give_up(evaluation, run, f"{type(error).__name__}: {error}")
        await asyncio.sleep(RETRY_SECONDS)


async def _give_up(evaluation: RunEvaluation, run: Run, reason: str) -> None:
    try:
        await evaluation.give_up(reason)
    except (FencedError, *UNREACHABLE) as error:
        run.log.warning("evaluation_interrupted", error=str(error))  # the next round reads how things stand
