"""The reference model of the KL term: the initial model, frozen, only there to be asked for log-probs."""

from __future__ import annotations

import torch
from torch import Tensor

from services.trainer.packing import MicroBatch
from services.trainer.policy import load_reference
from services.trainer.sharding import reference_config
from services.trainer.zero import quiet_deepspeed
from sluice.config import RunSpec


class ReferenceModel:
    """A copy of the initial model, sharded over all ranks by ZeRO-3, in host memory if the run says so.

    It has neither gradients nor an optimizer. Every method is a collective call.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._engine = quiet_deepspeed().initialize(
            model=load_reference(spec), config=reference_config(spec), dist_init_required=False
        )[0]
        self._engine.eval()

    @classmethod
    def of_run(cls, spec: RunSpec) -> ReferenceModel | None:
        """The run's reference model, or None when its loss has no KL term: then nothing is loaded."""
        return cls(spec) if spec.algorithm.kl_loss_coef else None

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """Log-probs of the trained tokens: [n], nats, without gradient."""
        with torch.no_grad():
            logp: Tensor = self._engine(batch)[0]
        return logp
