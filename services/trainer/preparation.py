"""What is settled before the first update of a training step: the anchors, what is rejected, what each token weighs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.trainer.engine import Scorer, UpdateEngine
from services.trainer.packing import MicroBatch
from services.trainer.ranks import Ranks
from services.trainer.rules import LossRules
from sluice.algorithms.aggregation import Denominators, count_denominators, token_weight
from sluice.algorithms.losses import kept_tokens


@dataclass(frozen=True, slots=True)
class Anchored:
    """A micro-batch, still in host memory, with what stays the same over all updates: [n] tensors on the device."""

    batch: MicroBatch
    trainer: Tensor | None
    """float64 log-probs under the weights before the first update; None: its own forward pass gives them."""
    reference: Tensor | None
    """float64 log-probs under the reference model; None without a KL term."""
    kept: Tensor
    """bool: not rejected."""

    def counts(self) -> Iterator[tuple[int, int]]:
        """(issue number, trained tokens) of each response."""
        tokens = self.batch.responses.sum(self.kept.cpu().long()).tolist()
        return zip(self.batch.groups, tokens, strict=True)


@dataclass(frozen=True, slots=True)
class Part:
    """A micro-batch ready to be trained."""

    anchored: Anchored
    weights: Tensor
    """[n] float64 on the device: of the aggregation; 0 where a token is rejected."""


@dataclass(frozen=True, slots=True)
class Update:
    """One mini-batch: this rank's parts, and the counts over all ranks that its loss divides by."""

    parts: tuple[Part, ...]
    totals: Denominators


class Preparation:
    """Makes updates from packed mini-batches. A collective call: every rank passes as many mini-batches.

    `masked`: what a rank with fewer micro-batches than another fills up with.
    """

    def __init__(
        self, engine: UpdateEngine, ranks: Ranks, rules: LossRules, masked: MicroBatch, reference: Scorer | None
    ) -> None:
        self._engine, self._ranks, self._rules, self._reference = engine, ranks, rules, reference
        self._masked = masked

    def prepare(self, mini_batches: Sequence[Sequence[MicroBatch]], epochs: int) -> list[Update]:
        """The updates of one pass over the batch, those included that rejection has left without a token."""
        equal = self._same_length_on_all_ranks(mini_batches)
        rules = self._rules
        # With one update the policy before it is the one of its forward pass, which costs nothing extra.
        ahead = rules.rejection is not None or (rules.recompute and len(equal) * epochs > 1)
        anchored = [[self._anchor(batch, ahead) for batch in batches] for batches in equal]
        totals = self._totals(anchored)
        return [
            Update(tuple(Part(found, self._weights(found, counts)) for found in parts), counts)
            for parts, counts in zip(anchored, totals, strict=True)
        ]

    def _same_length_on_all_ranks(self, mini_batches: Sequence[Sequence[MicroBatch]]) -> list[list[MicroBatch]]:
        counts = self._ranks.gather([len(batches) for batches in mini_batches])
        most = [max(column) for column in zip(*counts, strict=True)]
        return [
            [*batches, *[self._masked] * (wanted - len(batches))]
            for batches, wanted in zip(mini_batches, most, strict=True)
        ]

    def _anchor(self, batch: MicroBatch, ahead: bool) -> Anchored:
        moved = batch.to(self._engine.device)
        trainer = self._engine.logprobs(moved).double() if ahead else None
        reference = self._reference.logprobs(moved).double() if self._reference else None
        rule = self._rules.rejection
        if batch.masked or rule is None or trainer is None:
            kept = torch.full_like(moved.of_response, not batch.masked, dtype=torch.bool)
        else:
            kept = kept_tokens(trainer, moved.behaviour, rule, moved.responses)
        return Anchored(batch, trainer, reference, kept)

    def _totals(self, anchored: Sequence[Sequence[Anchored]]) -> list[Denominators]:
        mine = [[pair for found in parts for pair in found.counts()] for parts in anchored]
        of_replicas = self._ranks.gather_replicas(mine)
        return [count_denominators(pair for part in parts for pair in part) for parts in zip(*of_replicas, strict=True)]

    def _weights(self, found: Anchored, totals: Denominators) -> Tensor:
        mode, scale = self._rules.aggregation, self._rules.scale_factor
        of_response = [token_weight(mode, n, tokens, totals, scale) if tokens else 0.0 for n, tokens in found.counts()]
        weights = torch.tensor(of_response, dtype=torch.float64)[found.batch.of_response]
        return weights.to(found.kept.device) * found.kept
