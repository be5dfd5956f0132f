"""What a training step computes, written to be read: one row a response, all logits, autograd, plain loops.

Nothing of `sluice.algorithms` or of the trainer is used here but the model's file and the run's spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from sluice.config import RunSpec
from sluice.types import Batch, FinishReason, Rollout


@dataclass
class Row:
    """A response that may train, with everything its loss needs; tensors have one entry a token."""

    group: int
    rollout: Rollout
    advantage: float
    behaviour: Tensor
    trainer: Tensor
    """Log-probs before the first update."""
    reference: Tensor | None
    kept: Tensor


@dataclass
class PlainUpdate:
    """One optimizer update: its loss, and the gradient by parameter before clipping."""

    loss: float
    gradient: dict[str, Tensor]


class PlainTrainer:
    """A model, an optimizer, and the step."""

    def __init__(self, spec: RunSpec, prepare: Callable[[Any], Any], disturb: Callable[[Any], None]) -> None:
        """`prepare` a loaded model (its dtype), and `disturb` the copy of it that is the reference model."""
        self.spec = spec
        self.model, self.reference = (
            prepare(AutoModelForCausalLM.from_pretrained(spec.model.path, dtype=torch.float32)) for _ in range(2)
        )
        disturb(self.reference)
        o = spec.optim
        self.optimizer = torch.optim.AdamW(self.model.parameters(), o.lr, o.betas, o.eps, o.weight_decay)

    def step(self, batch: Batch, rollouts: Mapping[int, Sequence[Rollout]], lr: float) -> list[PlainUpdate]:
        """Train one batch; mini-batches in the order of the batch, that order again in each epoch."""
        t = self.spec.trainer
        size = t.prompts_per_step // t.updates_per_step
        mini_batches = [
            self._rows(batch, rollouts, [g.n for g in batch.groups[at : at + size]])
            for at in range(0, len(batch.groups), size)
        ]
        updates = []
        for _ in range(t.epochs_per_step):
            for rows in mini_batches:
                if any(bool(row.kept.any()) for row in rows):
                    updates.append(self._update(rows, lr))
        return updates

    def log_probs(self, model: Any, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy at each response token, from all logits of the row."""
        prompt, response = list(rollout.prompt_token_ids), list(rollout.token_ids)
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / self.spec.rollout.temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs[torch.arange(len(response)), torch.tensor(response)], entropy

    def _rows(self, batch: Batch, rollouts: Mapping[int, Sequence[Rollout]], wanted: Sequence[int]) -> list[Row]:
        a = self.spec.algorithm
        rows = []
        for group in batch.groups:
            if group.n not in wanted:
                continue
            rewards = torch.tensor([r.reward for r in group.rollouts], dtype=torch.float64)
            advantages = rewards - rewards.mean()
            if a.norm_adv_by_std:
                advantages = advantages / (rewards.std() + 1e-6)
            for summary, rollout, advantage in zip(group.rollouts, rollouts[group.n], advantages, strict=True):
                if not rollout.token_ids:
                    continue
                if a.overlong_filtering and summary.finish_reason is FinishReason.LENGTH:
                    continue
                with torch.no_grad():
                    trainer = self.log_probs(self.model, rollout)[0].double()
                    reference = self.log_probs(self.reference, rollout)[0].double() if a.kl_loss_coef else None
                behaviour = torch.tensor(list(rollout.logprobs), dtype=torch.float64)
                kept = self._kept(trainer - behaviour)
                rows.append(Row(group.n, rollout, float(advantage), behaviour, trainer, reference, kept))
        return rows

    def _kept(self, log_weight: Tensor) -> Tensor:
        a = self.spec.algorithm
        if a.rejection is None:
            return torch.ones(len(log_weight), dtype=torch.bool)
        scope, kind = a.rejection.rsplit("_", 1)
        # k2 and k3 of KL(behaviour ‖ trainer): samples are the behaviour policy's
        estimate = {"k1": log_weight, "k2": log_weight**2 / 2, "k3": log_weight.exp() - log_weight - 1}[kind]
        statistic = {
            "token": estimate,
            "seq_sum": estimate.sum().expand_as(estimate),
            "seq_mean": estimate.mean().expand_as(estimate),
            "seq_max": estimate.max().expand_as(estimate),
        }[scope]
        assert a.rejection_upper is not None
        if kind != "k1":
            return statistic <= a.rejection_upper
        lower = a.rejection_lower or 1 / a.rejection_upper
        return (statistic.exp() >= lower) & (statistic.exp() <= a.rejection_upper)

    def _update(self, rows: Sequence[Row], lr: float) -> PlainUpdate:
        a = self.spec.algorithm
        policy, kl, entropy = [], [], []
        for row in rows:
            logp, h = self.log_probs(self.model, row.rollout)
            logp = logp.double()
            policy.append(self._importance(row) * self._policy_loss(row, logp))
            kl.append(self._kl(logp, row.reference) if row.reference is not None else torch.zeros_like(logp))
            entropy.append(h.double())
        loss = self._aggregate(rows, policy)
        if a.kl_loss_coef:
            loss = loss + a.kl_loss_coef * self._aggregate(rows, kl)
        if a.entropy_coeff:
            loss = loss - a.entropy_coeff * self._aggregate(rows, entropy)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        gradient = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.requires_grad}
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.optim.grad_clip)
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()
        return PlainUpdate(float(loss.detach()), gradient)

    def _policy_loss(self, row: Row, logp: Tensor) -> Tensor:
        a, advantage = self.spec.algorithm, row.advantage
        ratio = torch.exp(logp - (row.trainer if a.proximal == "recompute" else row.behaviour))
        if a.loss_mode == "gspo":
            # s(θ) with the gradient of each token: at fixed s, ∇ s_t = s ∇ log π_t
            mean = ratio.detach().log()[row.kept].mean() if row.kept.any() else torch.zeros((), dtype=torch.float64)
            ratio = mean.exp() * torch.exp(logp - logp.detach())
        clipped = ratio.clamp(1 - a.clip_ratio_low, 1 + a.clip_ratio_high)
        if a.loss_mode == "cispo":
            return -advantage * clipped.detach() * logp
        worse = torch.maximum(-advantage * ratio, -advantage * clipped)
        if a.loss_mode == "vanilla" and advantage < 0:
            return worse.clamp(max=-advantage * a.clip_ratio_c)
        return worse

    def _importance(self, row: Row) -> Tensor:
        a = self.spec.algorithm
        log_weight = row.trainer - row.behaviour
        if a.importance_weight_cap is None or a.proximal == "bypass":
            return torch.ones_like(log_weight)
        if a.importance_weight_level == "sequence":
            log_weight = log_weight.sum().expand_as(log_weight)
        weight = log_weight.exp()
        if a.importance_weight_mode == "truncate":
            return weight.clamp(max=a.importance_weight_cap)
        return weight * ((weight >= a.importance_weight_floor) & (weight <= a.importance_weight_cap))

    def _kl(self, logp: Tensor, reference: Tensor) -> Tensor:
        d = logp - reference
        return {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) + d - 1}[self.spec.algorithm.kl_loss_type]

    def _aggregate(self, rows: Sequence[Row], losses: Sequence[Tensor]) -> Tensor:
        a = self.spec.algorithm
        found = [(row.group, loss[row.kept]) for row, loss in zip(rows, losses, strict=True) if row.kept.any()]
        by_response = [loss for _, loss in found]
        match a.loss_agg_mode:
            case "token-mean":
                return torch.cat(by_response).mean()
            case "token-sum":
                return torch.cat(by_response).sum()
            case "seq-mean-token-sum":
                return torch.stack([loss.sum() for loss in by_response]).mean()
            case "seq-mean-token-mean":
                return torch.stack([loss.mean() for loss in by_response]).mean()
            case "seq-mean-token-sum-norm":
                divisor = a.loss_scale_factor or self.spec.rollout.max_response_length
                return torch.stack([loss.sum() for loss in by_response]).mean() / divisor
            case "group-mean-token-mean":
                groups = sorted({n for n, _ in found})
                return torch.stack([torch.cat([x for m, x in found if m == n]).mean() for n in groups]).mean()


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """‖found − expected‖ / ‖expected‖ over all parameters; 0 where both are 0."""
    assert found.keys() == expected.keys()
    difference = math.sqrt(sum(_square(found[name].double() - expected[name].double()) for name in expected))
    size = math.sqrt(sum(_square(gradient.double()) for gradient in expected.values()))
    return difference / size if size else difference


def _square(values: Tensor) -> float:
    return float(values.detach().square().sum())
