"""Groups as the API shows them: what LEDGER decided, joined with the GROUPS message while it is retained."""

from __future__ import annotations

from collections.abc import Sequence

from nats.js.errors import NotFoundError

from services.coordinator.history import RunHistory
from services.coordinator.prompt_source import PromptSource, SourceShelf
from sluice.algorithms.dynamic_sampling import drop_reason
from sluice.errors import WireError
from sluice.transport.nats import Bus
from sluice.transport.queues import fetch_rollouts
from sluice.types import Group, RolloutSummary
from sluice.views import GroupDetailView, GroupView, RolloutView
from sluice.wire import subjects
from sluice.wire.codec import decode_group


class GroupReader:
    """Reads single groups by their own subject; prompts come from the data set, which is kept in memory once asked."""

    def __init__(self, bus: Bus, sources: SourceShelf) -> None:
        self._bus, self._sources = bus, sources

    async def list(self, history: RunHistory, after: int, limit: int) -> Sequence[GroupView]:
        """Groups n > `after`, lowest first."""
        numbers = range(after + 1, min(after + 1 + limit, history.next_n))
        return [_view(history, n, await self._stored(history.run_id, n)) for n in numbers]

    async def detail(self, history: RunHistory, n: int) -> GroupDetailView:
        """Group n with its prompt, verdicts and versions."""
        stored = await self._stored(history.run_id, n)
        source = await self._sources.of(history)
        prompt = source.prompt(history, n, history.version_of(n))
        view = _view(history, n, stored).model_dump() | {
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
                "error": stored.error,
                "rollouts": tuple([_rollout(r, await self._text(source, r)) for r in stored.rollouts]),
            }
        return GroupDetailView.model_validate(view)

    async def _text(self, source: PromptSource, summary: RolloutSummary) -> str | None:
        """The response behind a summary, checked by its hash; None once it is purged."""
        try:
            (rollout,) = await fetch_rollouts(self._bus, [(summary.sequences, summary.content_hash)])
        except WireError:
            return None
        return source.text(rollout.token_ids)

    async def _stored(self, run_id: str, n: int) -> Group | None:
        try:
            message = await self._bus.js.get_last_msg(subjects.GROUPS, subjects.group(run_id, n))
        except NotFoundError:
            return None
        return decode_group(message.data or b"")


def _view(history: RunHistory, n: int, stored: Group | None) -> GroupView:
    rollouts = stored.rollouts if stored else ()
    reason = history.dropped.get(n)
    if reason is None and stored is not None and n not in history.trained_in:
        reason = drop_reason(stored, history.spec.filter)
    state = "trained" if n in history.trained_in else "dropped" if reason else "kept" if stored else "in_flight"
    return GroupView.model_validate(
        {
            "n": n,
            "state": state,
            "reason": None if reason is None else str(reason),
            "batch": history.trained_in.get(n),
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
        content_hash=summary.content_hash.hex(),
        sequences=summary.sequences,
        text=text,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
