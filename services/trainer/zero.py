"""DeepSpeed around the policy: sharding, precision, the optimizer, and its state on disk."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.trainer.checkpoint import ENGINE_FOLDER
from services.trainer.packing import MicroBatch
from services.trainer.policy import Policy
from services.trainer.ranks import Ranks, cuda_device
from services.trainer.sharding import MIN_LOSS_SCALE, deepspeed_config
from sluice.config import RunSpec
from sluice.errors import ConfigError

GATHER_BYTES = 128 << 20
"""Parameters gathered at a time when weights are published."""
OPTIMIZER_SETTINGS = ("betas", "eps", "weight_decay")
"""What a checkpoint holds of them beside the learning rate, which every step sets."""
SHM_OP = "deepspeed_shm_comm"


def join_ranks(rank: int, world_size: int, on_gpu: bool, seconds: float) -> Ranks:
    """Start `torch.distributed` through DeepSpeed, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    if not on_gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"  # read by DeepSpeed when it is imported
    # DeepSpeed decorates functions that are never called here; without this it would load the compiler for them.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    deepspeed = quiet_deepspeed()
    deepspeed.init_distributed(
        dist_backend="nccl" if on_gpu else "gloo", timeout=datetime.timedelta(seconds=seconds), verbose=False
    )
    return Ranks(rank, world_size, seconds)


class ZeroEngine:
    """The sharded policy. Every method but `device` is a collective call.

    `universal`: what `load` will read is the universal form of a checkpoint, written by any number of ranks.
    """

    def __init__(self, policy: Policy, spec: RunSpec, device: torch.device, universal: bool = False) -> None:
        deepspeed = quiet_deepspeed()
        optim = spec.optim
        # Torch's fused AdamW exists for CPU and GPU; DeepSpeed's own would need a compiler at the first start.
        trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, optim.lr, optim.betas, optim.eps, optim.weight_decay, fused=True)
        self.device = device
        self._names, self._adapters = policy.names, policy.adapters
        self._stage = spec.trainer.zero_stage
        self._scaled = spec.model.trainer_dtype == "float16"
        if self._scaled and not deepspeed.accelerator.get_accelerator().is_fp16_supported():
            raise ConfigError(
                f"model.trainer_dtype = 'float16' needs a device that computes in it, which {device} does not; "
                f"use 'bfloat16' or 'float32'"
            )
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=policy, optimizer=optimizer, config=deepspeed_config(spec, universal), dist_init_required=False
        )
        if self._scaled:
            # At the smallest scale an overflow is no matter of scales: it is told like any other one.
            self._optimizer.loss_scaler.raise_error_at_min_scale = False
        self._engine.train()

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the trained tokens, with the gradients that the loss asks for."""
        logp, entropy = self._engine(batch)
        return logp, entropy

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """Log-probs of the trained tokens under the weights as they are, without gradient."""
        with torch.no_grad():
            logp: Tensor = self._engine(batch)[0]
        return logp

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient. The loss is taken as it is: nothing is divided by a number of micro-batches.

        Stages 2 and 3 own a shard of each gradient, so they must reduce after each micro-batch; stages 0 and 1 reduce
        once, after the `last` one.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, lr: float) -> float | None:
        """One optimizer update; returns the gradient norm before clipping, NaN or Inf when the update was refused.

        None: a float16 gradient overflowed under the loss scale, which is smaller now; no update was made of it.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if self._stage == 0:
            return self._unsharded_step()
        scale = float(self._optimizer.loss_scale) if self._scaled else MIN_LOSS_SCALE
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        if norm is not None and 0.0 <= float(norm) < math.inf:
            return float(norm)
        return None if scale > MIN_LOSS_SCALE else math.nan

    def _unsharded_step(self) -> float:
        """DeepSpeed clips at stage 0 too, but neither tells the norm nor refuses one that is not finite."""
        norm = float(
            torch.nn.utils.get_total_norm([p.grad for p in self._engine.module.parameters() if p.grad is not None])
        )
        if math.isfinite(norm):
            self._engine.step()
        else:
            self._engine.zero_grad()
        return norm

    def parameters(self) -> Iterator[list[tuple[str, Tensor]]]:
        """Whole parameters under the names of their checkpoint, a few at a time; valid until the next ones.

        Adapters are merged into the weights that they belong to.
        """
        module: nn.Module = self._engine.module
        weights = [p for p in module.parameters() if p not in self._adapters.names]
        for block in _blocks([[p, *self._adapters.matrices(p)] for p in weights]):
            with self._gathered([p for unit in block for p in unit]):
                yield [(self._names[unit[0]], self._adapters.merged(unit[0])) for unit in block]

    def adapters(self) -> Iterator[list[tuple[str, Tensor]]]:
        """The same of adapters alone, unmerged, under the names that peft gives them."""
        for block in _blocks([[p] for p in self._adapters.names]):
            with self._gathered([p for unit in block for p in unit]):
                yield [(self._names[p], p.detach()) for unit in block for p in unit]

    def without_adapters(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile log-probs are those of the initial model."""
        return self._adapters.off()

    def save(self, folder: Path) -> None:
        """Write this rank's shards of what is trained, with masters and optimizer states, and its random state."""
        self._engine.save_checkpoint(
            str(folder),
            tag=ENGINE_FOLDER,
            client_state={"torch_rng": torch.get_rng_state()},
            save_latest=False,
            exclude_frozen_parameters=bool(self._adapters.names),
        )

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote with the same number of ranks, or its universal form.

        The optimizer keeps the settings of the spec: those of the checkpoint may be of the run that was forked.
        """
        settings = [{name: group[name] for name in OPTIMIZER_SETTINGS} for group in self._optimizer.param_groups]
        _, client_state = self._engine.load_checkpoint(
            str(folder), tag=ENGINE_FOLDER, load_module_strict=not self._adapters.names
        )
        for group, own in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(own)
        torch.set_rng_state(client_state["torch_rng"])

    def _gathered(self, block: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
        if self._stage < 3:
            return contextlib.nullcontext()
        gathered: contextlib.AbstractContextManager[None] = quiet_deepspeed().zero.GatheredParameters(
            block, modifier_rank=None
        )
        return gathered


def rank_device(on_gpu: bool, local_rank: int) -> torch.device:
    return cuda_device(local_rank) if on_gpu else torch.device("cpu")


def _blocks(units: list[list[nn.Parameter]]) -> Iterator[list[list[nn.Parameter]]]:
    """Units of parameters that are needed together, as many at a time as fit."""
    block: list[list[nn.Parameter]] = []
    size = 0
    for unit in units:
        nbytes = sum(int(getattr(p, "ds_numel", p.numel())) * p.element_size() for p in unit)
        if block and size + nbytes > GATHER_BYTES:
            yield block
            block, size = [], 0
        block.append(unit)
        size += nbytes
    if block:
        yield block


def quiet_deepspeed() -> Any:
    """DeepSpeed, quiet, and without the operator that it would compile at `init_distributed` on a CPU."""
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.WARNING)
    # It calls torch's collectives by names that torch is about to change; that is not for the user to act on.
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
    operators = getattr(deepspeed.ops, "__compatible_ops__", {})
    if SHM_OP in operators:
        operators[SHM_OP] = False
    return deepspeed
