"""Whether two verifiers agree: live on a sample of groups, and what a comparison counts."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

from services.reward import metrics
from services.reward.loop import Judges
from services.reward.routing import Routes
from sluice.errors import SluiceError
from sluice.telemetry import Logger
from sluice.types import ScoreItem, Verdict, VerdictKind

MAX_OPEN = 4
"""Requests whose second opinion may be outstanding; further ones are left out: it must not slow the first."""


def outcome(first: Verdict, second: Verdict) -> str:
    """both_right, both_wrong, only_first, only_second, or failed when one of them has no score."""
    if VerdictKind.SCORED not in (first.kind, second.kind) or first.kind != second.kind:
        return "failed"
    right = is_right(first), is_right(second)
    return {(True, True): "both_right", (False, False): "both_wrong", (True, False): "only_first"}.get(
        right, "only_second"
    )


def is_right(verdict: Verdict) -> bool:
    return (verdict.acc or 0.0) > 0.5


class SecondOpinion:
    """Has a sample of the groups judged by a second verifier, after they were answered, and counts agreement.

    Args:
        judges: whoever runs verifiers.
        verifier: name of the second one.
        share: of the groups, between 0 and 1; a group is in the sample or not wherever and whenever it is judged.
    """

    def __init__(self, judges: Judges, verifier: str, share: float, log: Logger) -> None:
        self._judges, self._verifier, self._share, self._log = judges, verifier, share, log
        self._open: set[asyncio.Task[None]] = set()

    def consider(self, items: Sequence[ScoreItem], verdicts: Sequence[Verdict], routes: Routes) -> None:
        """Start judging what of a request is in the sample; returns at once."""
        if len(self._open) >= MAX_OPEN:
            return
        chosen = [(item, verdict) for item, verdict in zip(items, verdicts, strict=True) if self._in_sample(item)]
        pairs = [(item, verdict, first) for item, verdict in chosen if (first := self._first(item, routes))]
        if pairs:
            task = asyncio.get_running_loop().create_task(self._compare(pairs))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """Give up what is outstanding."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _in_sample(self, item: ScoreItem) -> bool:
        group, _, _ = item.id.rpartition("/")
        return zlib.crc32(group.encode("utf-8", "replace")) < self._share * 2**32

    def _first(self, item: ScoreItem, routes: Routes) -> str:
        """The verifier that judged first, or nothing when that was the second one itself, or none."""
        mixture = routes.find(item.data_source)
        return mixture[0].verifier if mixture and mixture[0].verifier != self._verifier else ""

    async def _compare(self, pairs: Sequence[tuple[ScoreItem, Verdict, str]]) -> None:
        try:
            seconds = await self._judges.score([(self._verifier, item) for item, _, _ in pairs])
        except SluiceError as error:
            self._log.warning("second_opinion_left_out", error=str(error))
            return
        for (_, verdict, first), second in zip(pairs, seconds, strict=True):
            metrics.AGREEMENT.labels(first, self._verifier, outcome(verdict, second)).inc()
