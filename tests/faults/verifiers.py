"""A user's verifier that takes its time, found by the reward server on the import path."""

from __future__ import annotations

import time

from sluice.types import ScoreItem

SECONDS = 0.4
RIGHT, WRONG = 1.0, 0.5
"""Neither is 0: a 0 in a group would be made up."""


def slow(item: ScoreItem) -> dict[str, object]:
    """Whether the answer is right, after a while."""
    time.sleep(SECONDS)
    value = RIGHT if item.response == item.ground_truth else WRONG
    return {"score": value, "acc": value}
