"""Getting an evaluation done: responses from one or more engines, verdicts from the reward service, lines in a folder.

`evaluate` reads like a main loop:

consumes:     the responses that the folder lacks, a piece of one problem at a time
produces:     judged samples, stored in the folder as they come
waits for:    an engine's answer (--request-seconds), an engine that went away (--engine-wait-seconds), verdicts
unblocked by: the engine; the reward service, or its client's deadline
on failure:   the piece of a lost engine goes to the others; what is stored stays, and the next start goes on from there
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sluice.data import PromptRow
from sluice.errors import ConfigError, PermanentError, SluiceError, TransientError, WaitTimeoutError
from sluice.evaluation.engine import EvaluationEngine, Response, Sampling
from sluice.evaluation.samples import EvaluationFolder, Sample
from sluice.evaluation.settings import EvaluationSettings, sample_seed
from sluice.transport.engine import EngineDownError
from sluice.types import ScoreItem, Verdict, VerdictKind

PIECE = 8
"""Most responses asked for in one request: they share the prompt's cache, and are what a killed evaluation loses."""
MAX_ATTEMPTS = 4
"""Engines that may get lost over one piece, until the piece itself counts as the cause."""
POLL_SECONDS = 0.25


class Scorer(Protocol):
    """Whoever gives verdicts: the reward service's client."""

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]: ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is put to the engines, and how."""

    settings: EvaluationSettings
    problems: Sequence[PromptRow]
    sampling: Sampling
    context_length: int
    weight_version: str
    """What every response must have been sampled from."""
    text: Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard engines are worked, and how long one may be away."""

    concurrency: int
    """Responses in flight at one engine."""
    engine_wait_seconds: float


@dataclass(frozen=True, slots=True)
class _Piece:
    problem: int
    samples: tuple[int, ...]
    attempts: int = 0


class _Desk:
    """One engine, used by several tasks: the first to find it gone waits for it, and the others wait for that."""

    def __init__(self, engine: EvaluationEngine, effort: Effort, weight_version: str) -> None:
        self.engine, self.lost = engine, ""
        self._seconds, self._weights = effort.engine_wait_seconds, weight_version
        self._recovery = asyncio.Lock()

    async def recover(self, why: EngineDownError) -> None:
        """Return once the engine answers again, or `lost` says why it does not count any more."""
        await asyncio.sleep(POLL_SECONDS)  # an engine that is overloaded needs no more requests at once
        async with self._recovery:
            if not self.lost and not await self._answers():
                self.lost = f"{why}; waited {self._seconds:g} s (--engine-wait-seconds)"

    async def _answers(self) -> bool:
        deadline = asyncio.get_running_loop().time() + self._seconds
        while True:
            try:
                check_weights(self.engine, (await self.engine.information()).weight_version, self._weights)
                return True
            except (TransientError, WaitTimeoutError):
                if asyncio.get_running_loop().time() >= deadline:
                    return False
            await asyncio.sleep(POLL_SECONDS)


async def check_verifiers(settings: EvaluationSettings, problems: Sequence[PromptRow], scorer: Scorer) -> None:
    """Have an empty response judged for one problem of each data source, before time goes into real ones.

    Raises:
        ConfigError: no verifier judges that data source, or it cannot judge by that ground truth.
        TransientError, PermanentError: the reward service does not answer, or refuses.
    """
    first = {row.data_source: row for row in reversed(problems)}
    items = [_item(settings, row, 0, "", 0) for row in first.values()]
    for row, verdict in zip(first.values(), await scorer.score(items), strict=True):
        if verdict.kind is VerdictKind.ERROR:
            given = f"--verifier {settings.verifier}" if settings.verifier else f"data source {row.data_source!r}"
            raise ConfigError(f"{given}: problem {row.index}, ground truth {row.ground_truth!r}: {verdict.message}")


async def evaluate(
    assignment: Assignment,
    folder: EvaluationFolder,
    engines: Sequence[EvaluationEngine],
    scorer: Scorer,
    effort: Effort,
    progress: Callable[[Sequence[Sample]], None],
) -> None:
    """Make and judge what `folder` lacks; `progress` is told of each piece that was stored.

    Raises:
        EngineDownError: no engine is left, or one piece lost MAX_ATTEMPTS of them.
        ConfigError: an engine's weights changed, or the disk is full.
        SluiceError: an engine refuses a prompt, an answer takes too long, or no verdicts are to be had.
    """
    size = min(PIECE, effort.concurrency)
    pieces = deque(_pieces(folder.missing(len(assignment.problems), assignment.settings.samples), size))
    desks = [_Desk(engine, effort, assignment.weight_version) for engine in engines]

    async def work(desk: _Desk) -> None:
        while pieces and not desk.lost:
            piece = pieces.popleft()
            try:
                responses = await _sample(assignment, desk.engine, piece)
            except EngineDownError as error:
                pieces.appendleft(_again(piece, error))
                await desk.recover(error)
                continue
            samples = await _judge(assignment, piece, responses, scorer)
            folder.add(samples)
            progress(samples)

    # Whoever is done early cannot know that a piece will come back: so go round until none is left.
    while pieces:
        living = [desk for desk in desks if not desk.lost]
        if not living:
            raise EngineDownError(f"no engine is left: {'; '.join(desk.lost for desk in desks)}")
        await _all(work(desk) for desk in living for _ in range(effort.concurrency // size))


async def _all(works: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all to their end; the first error ends the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(assignment: Assignment, engine: EvaluationEngine, piece: _Piece) -> list[Response]:
    settings, prompt = assignment.settings, assignment.problems[piece.problem].token_ids
    room = assignment.context_length - len(prompt) - 1  # some servers count one token more
    if room < 1:
        raise PermanentError(
            f"problem {piece.problem} has {len(prompt)} tokens, which leaves no room in a context of "
            f"{assignment.context_length}"
        )
    most = min(assignment.sampling.max_new_tokens, room)
    seeds = [sample_seed(settings.seed, piece.problem, i) for i in piece.samples]
    responses = await engine.sample(prompt, replace(assignment.sampling, max_new_tokens=most), seeds)
    for response in responses:
        check_weights(engine, response.weight_version, assignment.weight_version)
    return responses


def check_weights(engine: EvaluationEngine, found: str, expected: str) -> None:
    """Raises: ConfigError: the engine serves other weights than the evaluation is about."""
    if found != expected:
        raise ConfigError(
            f"--engine {engine.url}: serves weights {found!r}, and this evaluation is of {expected!r}; one evaluation "
            "is of one set of weights"
        )


async def _judge(assignment: Assignment, piece: _Piece, responses: Sequence[Response], scorer: Scorer) -> list[Sample]:
    row = assignment.problems[piece.problem]
    texts = [assignment.text(response.token_ids) for response in responses]
    items = [
        _item(assignment.settings, row, i, text, len(response.token_ids))
        for i, text, response in zip(piece.samples, texts, responses, strict=True)
    ]
    verdicts = await scorer.score(items)
    parts = zip(piece.samples, texts, responses, verdicts, strict=True)
    return [
        Sample(piece.problem, i, row.data_source, text, len(r.token_ids), r.finish_reason, r.weight_version, verdict)
        for i, text, r, verdict in parts
    ]


def _item(settings: EvaluationSettings, row: PromptRow, sample: int, response: str, tokens: int) -> ScoreItem:
    return ScoreItem(
        id=f"{row.index}/{sample}",
        data_source=settings.verifier or row.data_source,
        prompt=row.text,
        response=response,
        ground_truth=row.ground_truth,
        extra_info=row.extra_info,
        response_length=tokens,
    )


def _pieces(missing: Sequence[tuple[int, list[int]]], size: int) -> Iterator[_Piece]:
    for problem, lacking in missing:
        for start in range(0, len(lacking), size):
            yield _Piece(problem, tuple(lacking[start : start + size]))


def _again(piece: _Piece, error: SluiceError) -> _Piece:
    """Raises: EngineDownError: the piece has cost too many engines."""
    if piece.attempts + 1 >= MAX_ATTEMPTS:
        raise EngineDownError(f"problem {piece.problem} lost an engine {MAX_ATTEMPTS} times (MAX_ATTEMPTS); {error}")
    return replace(piece, attempts=piece.attempts + 1)
