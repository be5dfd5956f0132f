"""Groups as the API shows them: what LEDGER decided, joined with the GROUPS message, which is archived when purged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from nats.js.errors import NotFoundError

from services.coordinator.history import RunHistory
from services.coordinator.prompt_source import PromptSource, SourceShelf
from sluice.algorithms.dynamic_sampling import drop_reason
from sluice.data import seed_of
from sluice.errors import ConfigError, WireError
from sluice.group_views import GroupDetailView, GroupView, RolloutView, SpanView
from sluice.transport.archive import Archive
from sluice.transport.nats import Bus
from sluice.transport.queues import fetch_rollouts
from sluice.types import Group, RolloutSummary, VersionSpan
from sluice.wire import subjects
from sluice.wire.codec import decode_group


class GroupReader:
    """Reads single groups by their own subject; prompts come from the data set, which is kept in memory once asked."""

    def __init__(self, bus: Bus, sources: SourceShelf) -> None:
        self._bus, self._sources = bus, sources

    async def list(self, history: RunHistory, after: int, limit: int) -> Sequence[GroupView]:
        """Groups n > `after`, lowest first."""
        numbers = range(after + 1, min(after + 1 + limit, history.next_n))
        archive = Archive(self._bus, history.run_id)
        return [_view(history, n, await self._stored(archive, history.run_id, n)) for n in numbers]

    async def detail(self, history: RunHistory, n: int) -> GroupDetailView:
        """Group n with its prompt, verdicts and versions; without the prompt and texts if the data set is gone."""
        stored = await self._stored(Archive(self._bus, history.run_id), history.run_id, n)
        source = await self._source(history)
        view = _view(history, n, stored).model_dump()
        view |= {
            "seed": seed_of(history.spec.trainer.seed, n),
            "draw": _draw(history, n),
            "update": _update(history, n),
            "error": history.unreadable.get(n, ""),
        }
        if source is not None:
            prompt = source.prompt(history, n, history.version_of(n))
            view |= {
                "index": prompt.index,
                "epoch": prompt.epoch,
                "prompt": prompt.text,
                "ground_truth": prompt.ground_truth,
                "data_source": prompt.data_source,
                "extra_info": prompt.extra_info,
            }
        if stored is not None:
            view |= {
                "attempt": stored.attempt,
                "worker": stored.worker,
                "engine": stored.engine,
                "generate_seconds": stored.generate_seconds,
                "reward_seconds": stored.reward_seconds,
                "sample_text": stored.sample_text,
                "error": view["error"] or stored.error,
                "rollouts": tuple(map(_rollout, stored.rollouts, await _texts(self._bus, source, stored.rollouts))),
            }
        return GroupDetailView.model_validate(view)

    async def _source(self, history: RunHistory) -> PromptSource | None:
        """The run's data set, or None once it is not what the run was created with any more."""
        try:
            return await self._sources.of(history)
        except ConfigError:
            return None

    async def _stored(self, archive: Archive, run_id: str, n: int) -> Group | None:
        """None when there is none, or none that can be read: LEDGER says so then.

        The archive comes last, so that a group that moves there meanwhile is found.
        """
        try:
            message = await self._bus.js.get_last_msg(subjects.GROUPS, subjects.group(run_id, n))
        except NotFoundError:
            return await archive.group(n)
        try:
            return decode_group(message.data or b"")
        except WireError:
            return None


async def _texts(bus: Bus, source: PromptSource | None, summaries: Sequence[RolloutSummary]) -> list[str | None]:
    """The response behind each summary, checked by its hash; None once it is purged.

    What shares a message is fetched with it, once, and is gone with it.
    """
    if source is None:
        return [None] * len(summaries)
    texts: list[str | None] = []
    for _, neighbours in groupby(summaries, key=lambda summary: summary.sequences):
        together = list(neighbours)
        try:
            texts += [source.text(rollout.token_ids) for rollout in await fetch_rollouts(bus, together)]
        except WireError:
            texts += [None] * len(together)
    return texts


def _draw(history: RunHistory, n: int) -> int:
    """The draw of the data order that group n took."""
    draw = history.draws.of(n)
    return draw if history.origin is None else history.origin.draw(draw)


def _update(history: RunHistory, n: int) -> int | None:
    """Which optimizer update of one pass over its batch has group n: mini-batches are neighbours in the batch."""
    trainer = history.spec.trainer
    if history.fates.batch_of(n) is None:
        return None
    return history.fates.place_of(n) // (trainer.prompts_per_step // trainer.updates_per_step)


def _view(history: RunHistory, n: int, stored: Group | None) -> GroupView:
    rollouts = stored.rollouts if stored else ()
    batch, reason = history.fates.batch_of(n), history.fates.reason_of(n)
    if reason is None and stored is not None and batch is None:
        reason = drop_reason(stored, history.spec.filter)
    state = "trained" if batch is not None else "dropped" if reason else "kept" if stored else "in_flight"
    return GroupView.model_validate(
        {
            "n": n,
            "state": state,
            "reason": None if reason is None else str(reason),
            "batch": batch,
            "version": history.version_of(n),
            "acc_mean": _mean([r.acc for r in rollouts]),
            "reward_mean": _mean([r.reward for r in rollouts]),
            "length_mean": _mean([float(r.length) for r in rollouts]),
        }
    )


def _rollout(summary: RolloutSummary, text: str | None) -> RolloutView:
    scored = summary.verdict == "scored"
    return RolloutView(
        verdict=str(summary.verdict),
        acc=summary.acc if scored else None,
        score=summary.score if scored else None,
        shaping=summary.shaping,
        length=summary.length,
        finish_reason=str(summary.finish_reason),
        oldest_version=str(summary.oldest_version),
        newest_version=str(summary.newest_version),
        spans=_spans(summary),
        content_hash=summary.content_hash.hex(),
        sequences=summary.sequences,
        text=text,
    )


def _spans(summary: RolloutSummary) -> tuple[SpanView, ...]:
    whole = (VersionSpan(summary.oldest_version, 0, summary.length),) if summary.length else ()
    return tuple(SpanView(version=str(s.version), start=s.start, end=s.end) for s in summary.spans or whole)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
