"""What a replay counts."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.cli import main
from sluice.cli.replay import compare
from sluice.config import FilterConfig
from sluice.group_views import GroupDetailView, RolloutView


def rollout(acc: float, shaping: float = 0.0, verdict: str = "scored") -> RolloutView:
    return RolloutView(
        verdict=verdict,
        acc=acc,
        score=acc,
        shaping=shaping,
        length=3,
        finish_reason="stop",
        oldest_version="v0.1",
        newest_version="v0.1",
        text="7",
    )


def group(n: int, *rollouts: RolloutView) -> GroupDetailView:
    return GroupDetailView(n=n, state="kept", version=0, rollouts=rollouts)


def verdict(acc: float, kind: str = "scored") -> dict[str, Any]:
    return {"kind": kind, "acc": acc, "score": acc}


GROUPS = [
    group(0, rollout(1), rollout(0)),
    group(1, rollout(0), rollout(0, shaping=-0.5)),
    group(2, rollout(1), rollout(1)),
]


def test_another_verifier_moves_groups_by_its_verdicts_and_counts_each_way() -> None:
    verdicts = {(0, 0): verdict(1), (0, 1): verdict(1), (2, 0): verdict(0), (2, 1): verdict(1)}
    changes = compare(GROUPS, FilterConfig(), FilterConfig(), verdicts)
    assert (changes.kept_before, changes.kept_after) == (1, 1)
    assert changes.decisions == {"kept → all_correct": 1, "all_correct → kept": 1}
    assert (changes.wrong_to_right, changes.right_to_wrong, changes.rollouts_judged) == (1, 1, 4)
    assert changes.rollouts_not_stored == 2


def test_a_failed_verdict_is_no_wrong_answer() -> None:
    changes = compare(GROUPS[:1], FilterConfig(), FilterConfig(), {(0, 0): verdict(0, "timeout")})
    assert changes.failed == 1 and changes.right_to_wrong == 0
    assert changes.decisions == {"kept → verifier_failed": 1}


def test_another_rule_decides_on_the_recorded_outcomes() -> None:
    shaped = FilterConfig(metric="reward", allow_shaped_metric=True)
    assert compare(GROUPS, FilterConfig(), shaped, {}).decisions == {"all_wrong → kept": 1}
    assert compare(GROUPS, FilterConfig(), FilterConfig(enable=False), {}).kept_after == 3


def test_a_replay_that_would_change_nothing_asks_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "run-0"]) == 2
    assert "--verifier" in capsys.readouterr().err
