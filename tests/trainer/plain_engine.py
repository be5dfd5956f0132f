"""The trainer's own policy without DeepSpeed, in float64: what is left is the arithmetic of rows, losses and ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from services.trainer.packing import MicroBatch
from services.trainer.policy import Policy, load_policy
from services.trainer.ranks import Ranks
from sluice.config import RunSpec


def without_float32(causal: Any) -> Any:
    """The model in float64 throughout: the norms of the Llama family round to float32 whatever their input is."""

    def forward(norm: Any, states: Tensor) -> Tensor:
        variance = states.square().mean(-1, keepdim=True)
        scaled: Tensor = norm.weight * states * torch.rsqrt(variance + norm.variance_epsilon)
        return scaled

    for module in causal.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = forward.__get__(module)
    return causal.double()


class PlainScorer:
    """A policy that is only asked for log-probs."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def logprobs(self, batch: MicroBatch) -> Tensor:
        with torch.no_grad():
            logp: Tensor = self.policy(batch)[0]
        return logp


class PlainEngine(PlainScorer):
    """An `UpdateEngine` that keeps the whole gradient of each update, before clipping, and averages it as ZeRO does."""

    device = torch.device("cpu")

    def __init__(self, spec: RunSpec, ranks: Ranks) -> None:
        super().__init__(without_float32(load_policy(spec, ranks.sequence)))
        self.gradients: list[dict[str, Tensor]] = []
        self._ranks, self._clip, o = ranks, spec.optim.grad_clip, spec.optim
        self._optimizer = torch.optim.AdamW(self.policy.parameters(), o.lr, o.betas, o.eps, o.weight_decay)

    def frozen_copy(self, disturb: Callable[[Any], None]) -> PlainScorer:
        """A reference model that is not quite the policy."""
        sequence, self.policy.sequence = self.policy.sequence, None  # there is one process group of those ranks
        other = without_float32(copy.deepcopy(self.policy))
        other.sequence = self.policy.sequence = sequence
        disturb(other.body)
        return PlainScorer(other)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logp, entropy = self.policy(batch)
        return logp, entropy

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def step(self, lr: float) -> float:
        gradient = {}
        for parameter, name in self.policy.names.items():
            assert parameter.grad is not None
            if self._ranks.world_size > 1:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self._ranks.world_size
            gradient[name] = parameter.grad.clone()
        self.gradients.append(gradient)
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self._clip))
        if math.isfinite(norm):
            self._optimizer.param_groups[0]["lr"] = lr
            self._optimizer.step()
        self._optimizer.zero_grad()
        return norm
