"""What the updates of a training step need of whoever holds the weights."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from services.trainer.packing import MicroBatch


class Scorer(Protocol):
    """Weights that can be asked for log-probs."""

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """Log-probs of the trained tokens under the weights as they are: [n], nats, without gradient."""
        ...


class UpdateEngine(Scorer, Protocol):
    """Weights that are trained: `ZeroEngine`. Every method is a collective call."""

    device: torch.device

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the trained tokens, [n], nats, with the gradients that the loss asks for."""
        ...

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient, averaged over ranks; `last` of the update's micro-batches."""
        ...

    def step(self, lr: float) -> float | None:
        """One optimizer update; returns the gradient norm before clipping, NaN or Inf when the update was refused.

        None: the gradient overflowed under a loss scale that is smaller now. The same gradient has to be made again.
        """
        ...
