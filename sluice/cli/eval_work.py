"""An evaluation from start to end: engines, folder, servers of its own, samples, summary."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sluice.cancellation import cancelled_by_sigterm
from sluice.cli.eval_screen import progress_screen, show_results
from sluice.cli.eval_servers import ENGINE_START_SECONDS, Servers, own_servers
from sluice.data import PromptRow, PromptTable
from sluice.data.prompt_tokens import load_tokenizer
from sluice.errors import ConfigError, SluiceError
from sluice.evaluation.engine import EngineInfo, EvaluationEngine, Sampling
from sluice.evaluation.report import summarize
from sluice.evaluation.samples import SAMPLES_FILE, EvaluationFolder, write_summary
from sluice.evaluation.session import Assignment, Effort, check_verifiers, check_weights, evaluate
from sluice.evaluation.settings import EvaluationSettings
from sluice.evaluation.subject import Subject
from sluice.evaluation_views import EvaluationView
from sluice.local.state import ARTIFACTS
from sluice.secrets import read_secret
from sluice.transport.reward import RewardClient

VERDICT_SECONDS = 600.0
"""Longest wait for the verdicts of one piece, restarts of the reward service included."""
STAGING, LOGS = "checkpoint", "logs"


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for, checked; nothing is started yet."""

    subject: Subject
    settings: EvaluationSettings
    table: PromptTable
    problems: Sequence[PromptRow]
    """Of the table, the first `settings.limit`; a problem's number is its index here."""
    stop_token_ids: tuple[int, ...]

    @property
    def total(self) -> int:
        """Samples of the complete evaluation."""
        return len(self.problems) * self.settings.samples


@dataclass(frozen=True, slots=True)
class Means:
    """What it is done with. Without `urls` an engine is started for it."""

    urls: Sequence[str]
    out: Path | None
    effort: Effort
    request_seconds: float


async def run_evaluation(plan: Plan, means: Means) -> None:
    """Make and judge what is missing, then write and show the results.

    Raises:
        ConfigError: an engine, a verifier or the folder does not fit what was asked for.
        SluiceError: it could not be finished; what is stored stays.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(cancelled_by_sigterm())
        key = read_secret("SLUICE_ENGINE_API_KEY", os.environ)
        named = [EvaluationEngine(url, key, means.request_seconds) for url in means.urls]
        for engine in named:
            stack.push_async_callback(engine.close)
        weights = _served(plan.subject, await _agreed(plan.subject, named)) if named else plan.subject.weights()
        identity = plan.settings.identity(weights, plan.table.fingerprint)
        folder = stack.enter_context(EvaluationFolder(means.out or _default_out(plan, identity), identity))
        if folder.missing(len(plan.problems), plan.settings.samples):
            with _resumable(folder, plan.total):
                await _fill(plan, means, named, folder)
        _report(plan, identity, folder)


async def _fill(plan: Plan, means: Means, named: Sequence[EvaluationEngine], folder: EvaluationFolder) -> None:
    """Start what is needed, and work until nothing is missing."""
    staging = folder.folder / STAGING
    try:
        checkpoint = None if named else await asyncio.to_thread(plan.subject.checkpoint, staging)
        async with own_servers(checkpoint, plan.subject.weight_version, folder.folder / LOGS) as servers:
            await servers.supervisor.during(_work(plan, means, named, folder, servers))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


async def _work(
    plan: Plan, means: Means, named: Sequence[EvaluationEngine], folder: EvaluationFolder, servers: Servers
) -> None:
    async with AsyncExitStack() as stack:
        scorer = RewardClient([servers.reward_address], VERDICT_SECONDS, "VERDICT_SECONDS")
        stack.push_async_callback(scorer.close)
        engines, effort = list(named), means.effort
        if servers.engine_url is not None:
            # It is started again when it dies, and the supervisor gives up before this if it cannot be.
            effort = replace(effort, engine_wait_seconds=max(effort.engine_wait_seconds, ENGINE_START_SECONDS))
            engines = [EvaluationEngine(servers.engine_url, None, means.request_seconds)]
            stack.push_async_callback(engines[0].close)
        await check_verifiers(plan.settings, plan.problems, scorer)
        assignment = _assignment(plan, await asyncio.gather(*(engine.information() for engine in engines)))
        with progress_screen(len(folder.done), plan.total) as progress:
            await evaluate(assignment, folder, engines, scorer, effort, progress)


def _assignment(plan: Plan, infos: Sequence[EngineInfo]) -> Assignment:
    chosen, tokenizer = plan.settings, load_tokenizer(plan.subject.base)
    context = min((info.context_length for info in infos if info.context_length), default=0)
    return Assignment(
        settings=chosen,
        problems=plan.problems,
        sampling=Sampling(chosen.temperature, chosen.top_p, chosen.max_tokens, plan.stop_token_ids),
        context_length=context or _configured_context(plan.subject.base),
        weight_version=infos[0].weight_version,
        text=partial(tokenizer.decode, skip_special_tokens=True),
    )


async def _agreed(subject: Subject, engines: Sequence[EvaluationEngine]) -> list[EngineInfo]:
    """What the named engines say of themselves, once it is sure that they serve the same weights.

    Raises:
        ConfigError: they do not, or not the version that is to be evaluated.
        EngineDownError: one does not answer.
    """
    infos = list(await asyncio.gather(*(engine.information() for engine in engines)))
    expected = infos[0].weight_version if subject.version is None else subject.weight_version
    for engine, info in zip(engines, infos, strict=True):
        check_weights(engine, info.weight_version, expected)
    return infos


def _served(subject: Subject, infos: Sequence[EngineInfo]) -> str:
    """What identifies the weights of servers elsewhere: only they know, and each may mount them in another place."""
    names = sorted({Path(info.model_path).name for info in infos})
    return f"{', '.join(names)} {infos[0].weight_version} served for {subject.name}"


def _configured_context(base: Path) -> int:
    """Raises: ConfigError: neither engine nor model say how long a context may be."""
    config: dict[str, Any] = json.loads((base / "config.json").read_text(encoding="utf-8"))
    found = config.get("text_config", config).get("max_position_embeddings")
    if not isinstance(found, int):
        raise ConfigError(f"{base / 'config.json'}: max_position_embeddings = {found!r}, and the engine says none")
    return found


def _default_out(plan: Plan, identity: dict[str, Any]) -> Path:
    """The same for the same settings, so that the same command goes on; another for others."""
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=4).hexdigest()
    return ARTIFACTS / "eval" / f"{plan.subject.name}-{digest}"


@contextmanager
def _resumable(folder: EvaluationFolder, total: int) -> Iterator[None]:
    """Whoever is interrupted is told what is there already."""
    try:
        yield
    except (SluiceError, asyncio.CancelledError):
        if folder.done:
            stored = f"{len(folder.done)} of {total} samples are in {folder.folder / SAMPLES_FILE}"
            print(f"{stored}; the same command goes on from there", file=sys.stderr, flush=True)
        raise


def _report(plan: Plan, identity: dict[str, Any], folder: EvaluationFolder) -> None:
    every, sources = summarize(folder.done, plan.settings.samples)
    counts = plan.table.counts
    view = EvaluationView(
        model=plan.subject.name,
        weights=str(identity["weights"]),
        settings=identity,
        rows_read=counts.rows_read,
        duplicates=counts.duplicates,
        all=every,
        sources=sources,
    )
    written = write_summary(folder.folder, view.model_dump_json(indent=2) + "\n")
    show_results(view, f"{written}, {folder.folder / SAMPLES_FILE}")
