"""The reference model of the KL term: the initial model, frozen, only there to be asked for log-probs.

With adapters it is the policy without them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.trainer.engine import Scorer
from services.trainer.packing import MicroBatch
from services.trainer.policy import load_reference
from services.trainer.sequence import SequenceGroup
from services.trainer.sharding import reference_config
from services.trainer.zero import ZeroEngine, quiet_deepspeed
from sluice.config import RunSpec


class ReferenceModel:
    """A copy of the initial model, sharded over all ranks by ZeRO-3, in host memory if the run says so.

    It has neither gradients nor an optimizer. Every method is a collective call.
    """

    def __init__(self, spec: RunSpec, sequence: SequenceGroup | None = None) -> None:
        self._engine = quiet_deepspeed().initialize(
            model=load_reference(spec, sequence), config=reference_config(spec), dist_init_required=False
        )[0]
        self._engine.eval()

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """Log-probs of the trained tokens: [n], nats, without gradient."""
        with torch.no_grad():
            logp: Tensor = self._engine(batch)[0]
        return logp


class BasePolicy:
    """The policy without its adapters: the initial model, and no second copy. Every method is a collective call."""

    def __init__(self, engine: ZeroEngine) -> None:
        self._engine = engine

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """As the reference model's."""
        with self._engine.without_adapters():
            return self._engine.logprobs(batch)


def reference_of_run(spec: RunSpec, engine: ZeroEngine, sequence: SequenceGroup | None = None) -> Scorer | None:
    """What the run's KL term asks, or None when its loss has none: then nothing is loaded."""
    if not spec.algorithm.kl_loss_coef:
        return None
    return BasePolicy(engine) if spec.lora.rank else ReferenceModel(spec, sequence)
