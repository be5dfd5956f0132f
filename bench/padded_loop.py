"""The plain side of the training benchmark: transformers, padded rows, and an AdamW with float32 masters.

It is the loop that everybody writes first, and uses nothing of Sluice: as many responses at a time as fit, in their
order, prompts padded on the left and responses on the right to the longest of these; logits of all response positions
at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from bench.children import in_children
from bench.mixed_lengths import SampledGroup, response_tokens
from bench.processes import peak_rss_mib, serve

Update = Callable[[Sequence[SampledGroup]], tuple[float, float, int]]
"""One optimizer update on all these rollouts; returns loss, gradient norm and computed positions."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    lr: float
    weight_decay: float
    grad_clip: float
    clip_low: float
    clip_high: float


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """R rows [R, P + T]: `ids`, `attention` (1 where there is a token); `trained`: [R, T]; `advantages`: [R, 1]."""

    ids: Tensor
    attention: Tensor
    trained: Tensor
    advantages: Tensor


class Masters:
    """bfloat16 weights with float32 copies that AdamW updates, as mixed-precision training has them."""

    def __init__(self, model: nn.Module, hyper: Hyperparameters) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._masters = [weight.detach().float().clone() for weight in self._weights]
        self._clip = hyper.grad_clip
        self._optimizer = torch.optim.AdamW(self._masters, hyper.lr, weight_decay=hyper.weight_decay, fused=True)

    def accumulate(self) -> None:
        """Move the weights' gradients to the masters, in float32."""
        for weight, master in zip(self._weights, self._masters, strict=True):
            assert weight.grad is not None
            gradient = weight.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            weight.grad = None

    def update(self) -> float:
        """One optimizer update; returns the gradient norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self._masters, self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        with torch.no_grad():
            for weight, master in zip(self._weights, self._masters, strict=True):
                weight.copy_(master)
        return float(norm)


def begin(setup: None) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Each request is a turn, taken by a child, which takes its memory with it."""
    return lambda request: in_children(take_turn, [request])[0]


def take_turn(request: dict[str, Any]) -> dict[str, float]:
    """Load the model, and measure."""
    torch.set_num_threads(request["threads"])
    dtype, hyper = getattr(torch, request["dtype"]), Hyperparameters(**request["hyper"])
    return measured_turn(PaddedLoop(request["model"], dtype, request["rows"], hyper).update, request)


def measured_turn(update: Update, request: Mapping[str, Any]) -> dict[str, float]:
    """One update on `uncounted`, then the one on `groups` that counts."""
    update(request["uncounted"])
    began, used = time.monotonic(), time.process_time()
    loss, norm, computed = update(request["groups"])
    return {
        "seconds": time.monotonic() - began,
        "CPU-s": time.process_time() - used,
        "peak RSS MiB": peak_rss_mib(),
        "tokens computed": computed,
        "loss": loss,
        "grad norm": norm,
    }


class PaddedLoop:
    """One model and its optimizer; `update` trains a whole batch."""

    def __init__(self, model: str, dtype: torch.dtype, rows: int, hyper: Hyperparameters) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        self._model.train()
        self._masters = Masters(self._model, hyper)
        self._rows, self._hyper = rows, hyper

    def update(self, groups: Sequence[SampledGroup]) -> tuple[float, float, int]:
        """One update on all rollouts; returns loss, gradient norm and computed positions."""
        total, loss_sum, computed = response_tokens(groups), 0.0, 0
        responses = [
            (group["prompt"], tokens, advantage)
            for group in groups
            for tokens, advantage in zip(group["tokens"], _advantages(group["rewards"]), strict=True)
        ]
        for at in range(0, len(responses), self._rows):
            rows = padded_rows(responses[at : at + self._rows])
            loss = self._loss(rows) / total
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            self._masters.accumulate()
            loss_sum, computed = loss_sum + float(loss.detach()), computed + rows.ids.numel()
        return loss_sum, self._masters.update(), computed

    def _loss(self, rows: PaddedRows) -> Tensor:
        """Sum of the clipped loss over response tokens, anchored at the policy itself."""
        length = rows.trained.shape[1]
        logits = self._model(
            input_ids=rows.ids,
            attention_mask=rows.attention,
            position_ids=(rows.attention.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            logits_to_keep=length + 1,
        ).logits[:, :-1]
        logp = logits.float().log_softmax(-1).gather(2, rows.ids[:, -length:].unsqueeze(2)).squeeze(2)
        ratio = (logp - logp.detach()).exp()
        clipped = ratio.clamp(1 - self._hyper.clip_low, 1 + self._hyper.clip_high)
        token_loss = -torch.minimum(ratio * rows.advantages, clipped * rows.advantages)
        return token_loss.masked_fill(~rows.trained, 0.0).sum()


def padded_rows(responses: Sequence[tuple[list[int], list[int], float]]) -> PaddedRows:
    """Rows of (prompt, response, advantage), padded to the longest of them."""
    prompt, length = max(len(p) for p, _, _ in responses), max(len(t) for _, t, _ in responses)
    sizes = [(prompt - len(p), len(p), len(t), length - len(t)) for p, t, _ in responses]
    return PaddedRows(
        ids=torch.tensor([[0] * a + p + t + [0] * d for (p, t, _), (a, _, _, d) in zip(responses, sizes, strict=True)]),
        attention=torch.tensor([[0] * a + [1] * (b + c) + [0] * d for a, b, c, d in sizes]),
        trained=torch.arange(length) < torch.tensor([[c] for _, _, c, _ in sizes]),
        advantages=torch.tensor([[advantage] for _, _, advantage in responses]),
    )


def _advantages(rewards: Sequence[float]) -> list[float]:
    mean, spread = fmean(rewards), stdev(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


if __name__ == "__main__":
    serve(begin)
