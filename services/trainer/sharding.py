"""What DeepSpeed is told: stage, precision, offload; for the policy and for the reference model."""

from __future__ import annotations

from typing import Any

import torch

from sluice.config import RunSpec

MIN_LOSS_SCALE = 1.0
"""float16 gradients that overflow even at this scale have not overflowed because of it."""
CPU_BUCKET = 32_000_000
"""Numbers that are reduced at a time on a CPU, where DeepSpeed's own 500 million would be memory without use."""


def deepspeed_config(spec: RunSpec, universal: bool = False) -> dict[str, Any]:
    """DeepSpeed's configuration of a run; with `universal` it loads checkpoints in that form.

    Accumulation is ours: DeepSpeed counts one micro-batch an update and never divides. Gradients accumulate in float32,
    so that the update does not depend on how many micro-batches there are.
    """
    zero: dict[str, Any] = {"stage": spec.trainer.zero_stage, "overlap_comm": torch.cuda.is_available()}
    if not torch.cuda.is_available():
        zero["reduce_bucket_size"] = CPU_BUCKET
    if spec.trainer.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if spec.trainer.offload_parameters:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": spec.optim.grad_clip,
        **_precision(spec),
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "checkpoint": {"load_universal": universal},
        "steps_per_print": 1 << 60,
    }


def reference_config(spec: RunSpec) -> dict[str, Any]:
    """DeepSpeed's configuration of the reference model: no optimizer, and sharded whatever the run's stage."""
    zero: dict[str, Any] = {"stage": 3}
    if spec.trainer.offload_reference:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        **_precision(spec),
        "zero_optimization": zero,
        "steps_per_print": 1 << 60,
    }


def _precision(spec: RunSpec) -> dict[str, Any]:
    """float16 comes with a loss scale that halves at each overflow, at once, and doubles after 1000 good updates."""
    dtype = spec.model.trainer_dtype
    scaled = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 1}
    return {
        "bf16": {"enabled": dtype == "bfloat16"},
        "fp16": {"enabled": dtype == "float16", **scaled, "min_loss_scale": MIN_LOSS_SCALE},
    }
