"""What a finished run amounts to: the figures of `summary.json`, from the API's views and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.types import PolicyVersion
from sluice.views import RunView, StepView, VersionView

WINDOW = 5
"""Training steps over which a reward is averaged."""
GOOD_REWARD = 0.85
MANY_STEPS = 20


@dataclass(frozen=True, slots=True)
class Audit:
    """What `sluice audit` found: three counts that must be 0, and whether every invariant holds."""

    lost: int
    trained_twice: int
    staleness_violations: int
    clean: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Clocks start at the first issued prompt and end at the policy version of the step concerned; server times.

    `wall_seconds` ends with the run. Rewards are means over all sampled groups, dropped ones included.
    """

    steps: int
    reward_first: float | None
    reward_last5_mean: float | None
    wall_seconds: float | None
    groups_issued: int
    dropped: dict[str, int]
    lost: int
    trained_twice: int
    staleness_violations: int
    tokens_per_second: float | None
    seconds_to_reward_085: float | None
    """To the first training step whose last five average 0.85; None if there was none."""
    seconds_20_steps: float | None
    """None when the run had fewer."""


def summarize(run: RunView, steps: Sequence[StepView], versions: Sequence[VersionView], audit: Audit) -> Summary:
    """The summary of a run that has ended."""
    clock = _Clock(run, versions)
    rewards = [step.batch.reward_mean for step in steps if step.batch.reward_mean is not None]
    trained = clock.seconds_of(run.training_steps - 1)
    tokens = sum(step.batch.tokens for step in steps)
    finished = clock.seconds_to(run.finished_at.timestamp()) if run.finished_at else None
    return Summary(
        steps=run.training_steps,
        reward_first=rewards[0] if rewards else None,
        reward_last5_mean=_mean(rewards[-WINDOW:]),
        wall_seconds=finished,
        groups_issued=run.counts.issued,
        dropped=dict(sorted(run.counts.dropped.items())),
        lost=audit.lost,
        trained_twice=audit.trained_twice,
        staleness_violations=audit.staleness_violations,
        tokens_per_second=tokens / trained if trained else None,
        seconds_to_reward_085=clock.seconds_of(_first_good_step(steps)),
        seconds_20_steps=clock.seconds_of(MANY_STEPS - 1) if run.training_steps >= MANY_STEPS else None,
    )


class _Clock:
    def __init__(self, run: RunView, versions: Sequence[VersionView]) -> None:
        self._start = run.first_issue_at.timestamp() if run.first_issue_at else None
        self._published: dict[int, float] = {}
        for version in versions:
            # A restored trainer publishes a number again; the step was done the first time.
            number = PolicyVersion.parse(version.version).number
            self._published.setdefault(number, version.published_at.timestamp())

    def seconds_of(self, step: int | None) -> float | None:
        """From the first issued prompt to the policy version that training step `step` made."""
        end = None if step is None else self._published.get(step + 1)
        return None if end is None else self.seconds_to(end)

    def seconds_to(self, end: float) -> float | None:
        return None if self._start is None else end - self._start


def _first_good_step(steps: Sequence[StepView]) -> int | None:
    rewards = [step.batch.reward_mean for step in steps]
    for i in range(WINDOW, len(rewards) + 1):
        window = [r for r in rewards[i - WINDOW : i] if r is not None]
        if len(window) == WINDOW and sum(window) / WINDOW >= GOOD_REWARD:
            return steps[i - 1].step
    return None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
