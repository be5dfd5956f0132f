"""What a finished training step tells people: the step event and the metrics are made from this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.trainer.learner import Outcome
from sluice.types import Batch, FinishReason, PolicyVersion, RolloutSummary


@dataclass(frozen=True, slots=True)
class StepReport:
    """One training step; `outcome` is None when the batch had no trainable token and made no update."""

    batch: Batch
    version: PolicyVersion
    outcome: Outcome | None
    lr: float
    ranks: int
    prompt_tokens: int
    """Prompt tokens of all rollouts, as sampled: a prompt counts once for each of its rollouts."""
    computed_tokens: int
    """Tokens that went through the model, padding included, over all ranks."""
    seconds: dict[str, float]

    @property
    def updates(self) -> int:
        return self.outcome.updates if self.outcome else 0

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
        return {**self._facts(), **self._learning(), **self._sampling()}

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

    def _learning(self) -> dict[str, Any]:
        if self.outcome is None:
            names = ("loss", "grad_norm", "entropy", "clip_fraction_high", "clip_fraction_low", "approx_kl")
            zeros = dict.fromkeys((*names, "logprob_gap_mean", "importance_weight_mean"), 0.0)
            return {"updates": 0, "lr": self.lr, "trained_tokens": 0, **zeros}
        sums, tokens = self.outcome.sums, max(self.outcome.sums.tokens, 1.0)
        return {
            "updates": self.outcome.updates,
            "lr": self.lr,
            "trained_tokens": int(sums.tokens),
            "loss": sums.loss / self.ranks / self.outcome.updates,
            "grad_norm": _mean(self.outcome.grad_norms),
            "entropy": sums.entropy / tokens,
            "clip_fraction_high": sums.clipped_high / tokens,
            "clip_fraction_low": sums.clipped_low / tokens,
            "dual_clip_fraction": sums.dual_clipped / tokens,
            "approx_kl": -sums.log_ratio / tokens,
            "logprob_gap_mean": sums.logprob_gap / tokens,
            "importance_weight_mean": sums.importance_weight / tokens,
        }

    def _sampling(self) -> dict[str, Any]:
        rollouts, staleness = self.rollouts, self.staleness
        lengths = [r.length for r in rollouts]
        return {
            "reward_mean_kept": _mean([r.reward for r in rollouts]),
            "acc_mean_kept": _mean([r.acc for r in rollouts]),
            "response_length_mean": _mean(lengths),
            "response_length_max": max(lengths, default=0),
            "truncated_share": _mean([r.finish_reason is FinishReason.LENGTH for r in rollouts]),
            "staleness_max": max(staleness, default=0),
            "staleness_mean": _mean(staleness),
        }


def _mean(values: Any) -> float:
    return float(sum(values)) / len(values) if values else 0.0
