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

    def __init__(self, weight: nn.Parameter, temperature: float, entropy_gradient: bool = False) -> None:
        super().__init__()
        self.weight = weight
        self.temperature = temperature
        self.entropy_gradient = entropy_gradient

    def forward(self, hidden: Tensor, slots: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of each trained token, in nats: both [n] float32, or float64 if the weight is.

        Args:
            hidden: [m, width] states of the predicting nodes.
            slots: [n] ascending indices into `hidden`; several tokens may be predicted from one node.
            targets: [n] token ids.

        The log-prob always has a gradient, the entropy only with `entropy_gradient`: it costs one more pass over the
        logits of a chunk.
        """
        logp, entropy = _LogProbs.apply(  # type: ignore[no-untyped-call]  # torch does not annotate autograd functions
            hidden, self.weight, slots, targets, 1.0 / self.temperature
        )
        return logp, entropy if self.entropy_gradient else entropy.detach()


class _LogProbs(torch.autograd.Function):
    """log softmax(scale · hidden · weightᵀ) at the targets: softmax in float32 or more, products in the weight's dtype.

    With p the softmax and H its entropy: ∂ log p_t / ∂ logit_j = 1[j = t] − p_j, ∂ H / ∂ logit_j = −p_j (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, slots: Tensor, targets: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(weight.dtype, torch.float32)
        normaliser = hidden.new_empty(len(hidden), dtype=dtype)
        entropy = torch.empty_like(normaliser)
        logp = hidden.new_empty(len(slots), dtype=dtype)
        for rows, tokens in _chunks(slots, len(hidden), len(weight)):
            logits = functional.linear(hidden[rows], weight).to(dtype).mul_(scale)
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
        ctx.save_for_backward(hidden, weight, slots, targets, normaliser, entropy)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return logp, entropy[slots]

    @staticmethod
    def backward(
        ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, slots, targets, normaliser, entropy = ctx.saved_tensors
        if grad_logp is None:
            grad_logp = normaliser.new_zeros(len(slots))
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # frozen beside adapters
        for rows, tokens in _chunks(slots, len(hidden), len(weight)):
            logits = functional.linear(hidden[rows], weight).to(normaliser.dtype).mul_(ctx.scale)
            at = slots[tokens] - rows.start
            grad = grad_logp[tokens] * ctx.scale
            of_node = logits.new_zeros(len(logits), 1).index_add_(0, at, grad.unsqueeze(1))
            log_probs = logits.sub_(normaliser[rows].unsqueeze(1))
            if grad_entropy is None:
                d_logits = log_probs.exp_().mul_(-of_node)
            else:
                by_entropy = torch.zeros_like(of_node).index_add_(
                    0, at, (grad_entropy[tokens] * ctx.scale).unsqueeze(1)
                )
                probabilities = torch.exp(log_probs)
                d_logits = (
                    log_probs.add_(entropy[rows].unsqueeze(1)).mul_(-by_entropy).sub_(of_node).mul_(probabilities)
                )
            d_logits.index_put_((at, targets[tokens]), grad, accumulate=True)
            d_logits = d_logits.to(weight.dtype)
            torch.mm(d_logits, weight, out=grad_hidden[rows])
            if grad_weight is not None:
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
