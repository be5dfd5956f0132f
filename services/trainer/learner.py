"""The optimizer updates of one training step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from services.trainer.packing import MicroBatch, masked_micro_batch
from services.trainer.ranks import Ranks
from services.trainer.zero import ZeroEngine
from sluice.algorithms.losses import ClipRange, MetricSums, dapo_token_loss, importance_weights, metric_sums
from sluice.config import RunSpec
from sluice.errors import DivergedError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the updates of one training step did, over all ranks."""

    updates: int
    grad_norms: tuple[float, ...]
    sums: MetricSums


class Learner:
    """Turns packed mini-batches into optimizer updates. All ranks call it with their own shares of the same updates."""

    def __init__(self, engine: ZeroEngine, ranks: Ranks, spec: RunSpec) -> None:
        self._engine, self._ranks = engine, ranks
        algorithm = spec.algorithm
        self._clip = ClipRange(algorithm.clip_ratio_low, algorithm.clip_ratio_high, algorithm.clip_ratio_c)
        self._recompute = algorithm.proximal == "recompute"
        self._cap = algorithm.importance_weight_cap

    def train(self, mini_batches: Sequence[Sequence[MicroBatch]], lr: float, groups: Sequence[int]) -> Outcome:
        """One optimizer update a mini-batch.

        The proximal policy is the one before the first update. With a single update that is the current policy, so its
        log-probs are those of the forward pass itself; with several they are computed before the first update.

        Args:
            mini_batches: this rank's micro-batches of each update; every rank passes the same number of updates.
            lr: learning rate.
            groups: issue numbers of the batch, for the message when it diverges.

        Raises:
            DivergedError: the loss or a gradient norm is NaN or Inf; no update was made from it.
        """
        padded = self._same_length_on_all_ranks(mini_batches)
        anchors: list[list[Tensor | None]] = [[None] * len(micro_batches) for micro_batches in padded]
        if self._recompute and len(padded) > 1:
            anchors = [[self._engine.logprobs(m) for m in micro_batches] for micro_batches in padded]
        sums = torch.zeros(len(fields(MetricSums)), dtype=torch.float64)
        norms = []
        for micro_batches, proximal in zip(padded, anchors, strict=True):
            sums += self._accumulate(micro_batches, proximal)
            norms.append(self._engine.step(lr))
            if not math.isfinite(norms[-1]):
                break
        total = MetricSums(*self._ranks.total(sums).tolist())
        if not all(map(math.isfinite, (total.loss, *norms))):
            raise DivergedError(
                f"loss {total.loss} and gradient norms {norms} are not finite; the batch trains groups {list(groups)}"
            )
        return Outcome(len(norms), tuple(norms), total)

    def _same_length_on_all_ranks(self, mini_batches: Sequence[Sequence[MicroBatch]]) -> list[list[MicroBatch]]:
        counts = self._ranks.gather([len(micro_batches) for micro_batches in mini_batches])
        most = [max(column) for column in zip(*counts, strict=True)]
        device = self._engine.device
        return [
            [m.to(device) for m in (*micro_batches, *[masked_micro_batch()] * (wanted - len(micro_batches)))]
            for micro_batches, wanted in zip(mini_batches, most, strict=True)
        ]

    def _accumulate(self, micro_batches: Sequence[MicroBatch], anchors: Sequence[Tensor | None]) -> Tensor:
        sums = torch.zeros(len(fields(MetricSums)), dtype=torch.float64)
        for at, (batch, anchor) in enumerate(zip(micro_batches, anchors, strict=True), start=1):
            logp, entropy = self._engine.forward(batch)
            recomputed = logp.detach() if anchor is None else anchor
            proximal, importance = self._anchor(batch, recomputed)
            token = dapo_token_loss(logp, proximal, batch.advantages, self._clip)
            weighted = token.loss * importance * batch.weights
            self._engine.backward(weighted.sum(), last=at == len(micro_batches))
            if not batch.masked:
                gap = (recomputed - batch.behaviour).abs()
                sums += metric_sums(token, weighted, entropy, gap, importance).cpu()
        return sums

    def _anchor(self, batch: MicroBatch, recomputed: Tensor) -> tuple[Tensor, Tensor]:
        """Proximal log-probs, and the weights that correct behaviour to proximal."""
        if not self._recompute:
            return batch.behaviour, torch.ones_like(batch.behaviour)
        return recomputed, importance_weights(recomputed, batch.behaviour, self._cap)
