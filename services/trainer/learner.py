"""The optimizer updates of one training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.trainer.engine import Scorer, UpdateEngine
from services.trainer.packing import MicroBatch, masked_micro_batch
from services.trainer.preparation import Anchored, Part, Preparation, Update
from services.trainer.ranks import Ranks
from services.trainer.rules import LossRules
from sluice.algorithms.losses import (
    GapSums,
    UpdateSums,
    gap_sums,
    importance_weights,
    kl_estimate,
    merge,
    policy_token_loss,
    raw_weights,
    update_sums,
)
from sluice.config import RunSpec
from sluice.errors import DivergedError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the updates of one training step did, over all ranks."""

    updates: int
    grad_norms: tuple[float, ...]
    """Before clipping, of each update."""
    overflows: int
    """Gradients that were thrown away and made again, because they overflowed under the loss scale of float16."""
    sums: UpdateSums
    gap: GapSums
    trained_tokens: int
    """In one pass over the batch."""
    trained_sequences: int


class Learner:
    """Turns packed mini-batches into optimizer updates.

    All ranks call it with their own shares of the same updates; those of a replica with the same share.
    """

    def __init__(self, engine: UpdateEngine, ranks: Ranks, spec: RunSpec, reference: Scorer | None = None) -> None:
        self._engine, self._ranks = engine, ranks
        self._rules = LossRules.of(spec)
        self._epochs = spec.trainer.epochs_per_step
        masked = masked_micro_batch(spec.model.attention == "flash_attention_2", spec.trainer.sequence_parallel)
        self._preparation = Preparation(engine, ranks, self._rules, masked, reference)
        self._sums: list[UpdateSums] = []
        self._gaps: list[GapSums] = []
        self._overflows = 0

    def train(self, mini_batches: Sequence[Sequence[MicroBatch]], rate: Callable[[int], float]) -> Outcome:
        """One optimizer update a mini-batch and epoch; a mini-batch without a trained token makes none.

        The proximal policy is the one before the first update, for all epochs.

        Args:
            mini_batches: this rank's micro-batches of each update; every rank passes the same number of updates.
            rate: learning rate of the step's update number i, from 0.

        Raises:
            DivergedError: a loss or a gradient norm is NaN or Inf; no update was made from it. Names the groups.
        """
        self._sums, self._gaps, self._overflows = [], [], 0
        prepared = self._preparation.prepare(mini_batches, self._epochs)
        self._measure(prepared)
        updates = [update for update in prepared if update.totals.tokens]
        norms: list[float] = []
        for update in updates * self._epochs:
            norms.append(self._make(update, rate(len(norms)), first=not norms))
            self._check_norm(norms, update)
        return Outcome(
            updates=len(norms),
            grad_norms=tuple(norms),
            overflows=self._overflows,
            sums=merge(self._ranks.gather_replicas(merge(self._sums, UpdateSums())), UpdateSums()),
            gap=merge(self._ranks.gather_replicas(merge(self._gaps, GapSums())), GapSums()),
            trained_tokens=sum(update.totals.tokens for update in updates),
            trained_sequences=sum(update.totals.sequences for update in updates),
        )

    def _make(self, update: Update, lr: float, first: bool) -> float:
        """One optimizer update, its gradient made again for as long as it overflows; returns its norm."""
        seen = len(self._sums), len(self._gaps)
        while True:
            self._accumulate(update, first)
            norm = self._engine.step(lr)
            if norm is not None:
                return norm
            self._overflows += 1
            del self._sums[seen[0] :], self._gaps[seen[1] :]

    def _accumulate(self, update: Update, first: bool) -> None:
        """The gradient of one mini-batch, and its statistics.

        Raises:
            DivergedError: on every rank, when a loss on any of them is not finite.
        """
        diverged: set[int] = set()
        for at, part in enumerate(update.parts, start=1):
            batch = part.anchored.batch.to(self._engine.device)
            logp, entropy = self._engine.forward(batch)
            logp, entropy = logp.double(), entropy.double()
            if first and part.anchored.trainer is None:
                self._gaps += self._gap(part.anchored, logp.detach())
            loss = self._loss(part, batch, logp, entropy)
            # ZeRO averages over all ranks what has to be added up: each has the gradient of the tokens that it holds.
            self._engine.backward(loss.sum() * self._ranks.world_size, last=at == len(update.parts))
            broken = batch.of_response[~torch.isfinite(loss)].tolist()
            diverged |= {batch.groups[i] for i in broken if not batch.masked}
        if self._ranks.total(torch.tensor([float(len(diverged))])).item():
            groups = sorted(set().union(*self._ranks.gather(diverged)))
            raise DivergedError(f"the loss of groups {groups} is NaN or Inf; no update was made from it")

    def _loss(self, part: Part, batch: MicroBatch, logp: Tensor, entropy: Tensor) -> Tensor:
        """[n] weighted loss of each token: their sum over all micro-batches and ranks is the loss."""
        rules, anchored = self._rules, part.anchored
        trainer = logp.detach() if anchored.trainer is None else anchored.trainer
        token = policy_token_loss(
            rules.mode,
            logp=logp,
            proximal=trainer if rules.recompute else batch.behaviour,
            advantages=batch.advantages,
            clip=rules.clip,
            responses=batch.responses,
            kept=anchored.kept,
        )
        policy_loss = token.loss * self._importance(batch, trainer) * part.weights
        loss, kl = policy_loss, None
        if anchored.reference is not None:
            kl = kl_estimate(rules.kl_type, logp, anchored.reference)
            loss = loss + rules.kl_coef * kl * part.weights
        if rules.entropy_coeff:
            loss = loss - rules.entropy_coeff * entropy * part.weights
        if not batch.masked:
            self._sums.append(
                update_sums(
                    token,
                    policy_loss=policy_loss,
                    loss=loss,
                    logp=logp,
                    entropy=entropy,
                    reference_kl=kl,
                    kept=anchored.kept,
                )
            )
        return loss

    def _importance(self, batch: MicroBatch, trainer: Tensor) -> Tensor:
        rule = self._rules.weights
        if rule is None:
            return torch.ones_like(trainer)
        return importance_weights(raw_weights(trainer, batch.behaviour, rule.level, batch.responses), rule)

    def _measure(self, prepared: Sequence[Update]) -> None:
        """Both policies against each other, where the trainer's log-probs are known before the first update."""
        for update in prepared:
            for part in update.parts:
                if part.anchored.trainer is not None:
                    self._gaps += self._gap(part.anchored, part.anchored.trainer)

    def _gap(self, anchored: Anchored, trainer: Tensor) -> list[GapSums]:
        batch = anchored.batch.to(trainer.device)
        if batch.masked:
            return []
        weights = self._importance(batch, trainer)
        return [gap_sums(trainer, batch.behaviour, weights, self._rules.weights, batch.responses, anchored.kept)]

    def _check_norm(self, norms: Sequence[float], update: Update) -> None:
        """Raises: DivergedError: the newest norm, the same on every rank, is not finite."""
        if not math.isfinite(norms[-1]):
            raise DivergedError(
                f"gradient norm of update {len(norms)} of the step is {norms[-1]}, though every loss is finite; "
                f"its mini-batch trains groups {sorted(update.totals.groups)}"
            )
