"""Log-probs of chosen tokens from hidden states, without ever holding the logits of a whole micro-batch.

`[m, vocabulary]` in float32 is the largest tensor of RL training by far. Here the logits of a few nodes at a time are
made, used and forgotten; the backward pass makes them again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK_BYTES = 32 << 20
"""Float32 logits alive at a time; about what the last cache level of a server core complex holds."""


class LogProbHead(nn.Module):
    """The language-model head, ending in log-probs. It owns the weight so that ZeRO-3 gathers it around `forward`."""

    def __init__(self, weight: nn.Parameter, temperature: float) -> None:
        super().__init__()
        self.weight = weight
        self.temperature = temperature

    def forward(self, hidden: Tensor, slots: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob (with gradient) and entropy (without) of each trained token, in nats: both [n] float32.

        Args:
            hidden: [m, width] states of the predicting nodes.
            slots: [n] ascending indices into `hidden`; several tokens may be predicted from one node.
            targets: [n] token ids.
        """
        logp, entropy = _LogProbs.apply(  # type: ignore[no-untyped-call]  # torch does not annotate autograd functions
            hidden, self.weight, slots, targets, 1.0 / self.temperature
        )
        return logp, entropy


class _LogProbs(torch.autograd.Function):
    """log softmax(scale · hidden · weightᵀ) at the targets. Softmax in float32, products in the weight's dtype."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, slots: Tensor, targets: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        normaliser = hidden.new_empty(len(hidden), dtype=torch.float32)
        entropy = torch.empty_like(normaliser)
        logp = hidden.new_empty(len(slots), dtype=torch.float32)
        for rows, tokens in _chunks(slots, len(hidden), len(weight)):
            logits = functional.linear(hidden[rows], weight).float().mul_(scale)
            at = slots[tokens] - rows.start
            picked = logits[at, targets[tokens]]
            top = logits.amax(dim=1, keepdim=True)
            shifted = logits.sub_(top)
            exp = torch.exp(shifted)
            total = exp.sum(dim=1)
            mean = torch.linalg.vecdot(exp, shifted) / total
            normaliser[rows] = total.log().add_(top.squeeze(1))
            entropy[rows] = total.log_().sub_(mean)
            logp[tokens] = picked - normaliser[rows][at]
        ctx.save_for_backward(hidden, weight, slots, targets, normaliser)
        ctx.scale = scale
        spread = entropy[slots]
        ctx.mark_non_differentiable(spread)
        return logp, spread

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, weight, slots, targets, normaliser = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight)
        for rows, tokens in _chunks(slots, len(hidden), len(weight)):
            logits = functional.linear(hidden[rows], weight).float().mul_(ctx.scale)
            at = slots[tokens] - rows.start
            grad = grad_logp[tokens] * ctx.scale
            of_node = logits.new_zeros(len(logits)).index_add_(0, at, grad)
            probabilities = logits.sub_(normaliser[rows].unsqueeze(1)).exp_()
            d_logits = probabilities.mul_(-of_node.unsqueeze(1))
            d_logits.index_put_((at, targets[tokens]), grad, accumulate=True)
            d_logits = d_logits.to(weight.dtype)
            torch.mm(d_logits, weight, out=grad_hidden[rows])
            grad_weight.addmm_(d_logits.t(), hidden[rows])
        return grad_hidden, grad_weight, None, None, None


def _chunks(slots: Tensor, nodes: int, vocabulary: int) -> list[tuple[slice, slice]]:
    """Slices of nodes whose logits fit CHUNK_BYTES, each with the slice of the tokens that they predict."""
    step = max(1, CHUNK_BYTES // (4 * vocabulary))
    borders = [*range(0, nodes, step), nodes]
    tokens = torch.searchsorted(slots, torch.tensor(borders, device=slots.device)).tolist()
    return [
        (slice(a, b), slice(s, e))
        for a, b, s, e in zip(borders, borders[1:], tokens, tokens[1:], strict=False)
        if b > a
    ]
