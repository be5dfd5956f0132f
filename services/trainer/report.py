"""What a finished training step tells people: the step event and the metrics are made from this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.trainer.assignment import advantages_of
from services.trainer.learner import Outcome
from services.trainer.progress import Progress
from sluice.config import RunSpec
from sluice.types import Batch, FinishReason, PolicyVersion, RolloutSummary


@dataclass(frozen=True, slots=True)
class StepReport:
    """One training step; `outcome` has no updates when the batch had no trainable token."""

    batch: Batch
    spec: RunSpec
    version: PolicyVersion
    outcome: Outcome
    progress: Progress
    """After this step."""
    lr: float
    """Of the step's last update."""
    prompt_tokens: int
    """Prompt tokens of all rollouts, as sampled: a prompt counts once for each of its rollouts."""
    computed_tokens: int
    """Tokens of one pass through the model, padding included, over all ranks."""
    seconds: dict[str, float]

    @property
    def updates(self) -> int:
        return self.outcome.updates

    @property
    def rollouts(self) -> list[RolloutSummary]:
        return [r for g in self.batch.groups for r in g.rollouts]

    @property
    def response_tokens(self) -> int:
        return sum(r.length for r in self.rollouts)

    @property
    def staleness(self) -> list[int]:
        """Of each rollout: the batch's index minus the version of its oldest token."""
        return [self.batch.k - r.oldest_version.number for r in self.rollouts]

    def fields(self) -> dict[str, Any]:
        """The step event."""
        return {**self._facts(), **self.learning(), **self._sampling()}

    def _facts(self) -> dict[str, Any]:
        total = self.seconds["total"]
        tokens = self.prompt_tokens + self.response_tokens
        return {
            "step": self.batch.k,
            "version": str(self.version),
            "groups": len(self.batch.groups),
            "seconds": {phase: round(seconds, 4) for phase, seconds in self.seconds.items()},
            "tokens_per_second": tokens / total if total else 0.0,
            "computed_tokens": self.computed_tokens,
            "prompt_tokens": self.prompt_tokens,
            "response_tokens": self.response_tokens,
        }

    def learning(self) -> dict[str, Any]:
        """What the updates did, zeros where nothing was trained: a replay of the step finds the same."""
        outcome, norms = self.outcome, self.outcome.grad_norms
        return {
            "updates": outcome.updates,
            "updates_total": self.progress.updates,
            "gradient_overflows": outcome.overflows,
            "lr": self.lr,
            "trained_tokens": outcome.trained_tokens,
            "trained_sequences": outcome.trained_sequences,
            "grad_norm": _mean(norms),
            "grad_norm_max": max(norms, default=0.0),
            "grad_clipped_fraction": _mean([norm > self.spec.optim.grad_clip for norm in norms]),
            **outcome.sums.fields(outcome.updates),
            **outcome.gap.fields(),
        }

    def _sampling(self) -> dict[str, Any]:
        rollouts, staleness = self.rollouts, self.staleness
        lengths = [r.length for r in rollouts]
        truncated = [r.finish_reason is FinishReason.LENGTH for r in rollouts]
        advantages = [a for g in self.batch.groups for a in advantages_of(g, self.spec)]
        return {
            "groups_issued": self.batch.tally.issued,
            "reward_mean_kept": _mean([r.reward for r in rollouts]),
            "score_mean_kept": _mean([r.score for r in rollouts]),
            "acc_mean_kept": _mean([r.acc for r in rollouts]),
            "advantage_min": min(advantages, default=0.0),
            "advantage_max": max(advantages, default=0.0),
            "overlong_penalty_mean": _mean([r.shaping for r in rollouts]),
            "overlong_share": _mean([r.shaping < 0.0 for r in rollouts]),
            "overlong_filtered": sum(truncated) if self.spec.algorithm.overlong_filtering else 0,
            "prompt_length_mean": self.prompt_tokens / len(rollouts) if rollouts else 0.0,
            "response_length_mean": _mean(lengths),
            "response_length_min": min(lengths, default=0),
            "response_length_max": max(lengths, default=0),
            "truncated_share": _mean(truncated),
            "staleness_max": max(staleness, default=0),
            "staleness_mean": _mean(staleness),
        }


def _mean(values: Any) -> float:
    return float(sum(values)) / len(values) if values else 0.0
