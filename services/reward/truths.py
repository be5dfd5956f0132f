"""Ground truths that a verifier cannot judge by: found before a run is started with them, or a file is prepared."""

from __future__ import annotations

from collections.abc import Sequence

from services.reward.loop import Judges
from services.reward.mixture import Mixture
from services.reward.verifiers.registry import CHECK
from sluice.types import ScoreItem


async def truth_faults(judges: Judges, items: Sequence[ScoreItem], mixtures: Sequence[Mixture | None]) -> list[str]:
    """What is wrong with each item's ground truth, for any verifier of its sum; empty when nothing is."""
    pairs = list(zip(items, mixtures, strict=True))
    asked = [(CHECK + part.verifier, item) for item, mixture in pairs for part in mixture or ()]
    answers = iter(await judges.score(asked))
    faults = []
    for item, mixture in pairs:
        messages = [_plain(next(answers).message) for _ in mixture or ()]
        unknown = f"no verifier for data source {item.data_source!r} (SLUICE_REWARD_ROUTES)" if mixture is None else ""
        faults.append(unknown or next((message for message in messages if message), ""))
    return faults


def _plain(message: str) -> str:
    """What a check of a ground truth says, without how it was said."""
    return message.partition(" raised ValueError: ")[2] or message
