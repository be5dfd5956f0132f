"""What DeepSpeed is told for each option of a run file, and what it makes of it where a CPU can run it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.checkpoint import CheckpointManifest
from services.trainer.claim import Claim, Restored, fit_to_ranks
from services.trainer.fetching import assemble_share, plan_share
from services.trainer.packing import PackingLimits
from services.trainer.policy import load_policy
from services.trainer.ranks import Ranks
from services.trainer.sharding import deepspeed_config, reference_config
from services.trainer.zero import ZeroEngine
from sluice.config import RunSpec, load_run_spec
from sluice.errors import ConfigError
from sluice.telemetry import get_logger
from sluice.types import Checkpoint
from tests.trainer.reference import distance
from tests.trainer.script import make_batch, make_spec
from tests.trainer.updating import CPU, GradientProbe, train_batch, weights

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")

CONFIGS = Path(__file__).parents[2] / "configs"
LOSS_SCALE = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 1,
    "min_loss_scale": 1.0,
}


def spec_of(model: Path, dtype: str = "float32", **trainer: Any) -> RunSpec:
    fields = {"total_steps": 1, "prompts_per_step": 4, "updates_per_step": 2, "max_tokens_per_micro_batch": 64}
    return make_spec(
        model, model={"trainer_dtype": dtype}, trainer={**fields, **trainer}, optim={"lr": 1e-3, "eps": 1e-3}
    )


def parsed(config: dict[str, Any]) -> Any:
    """DeepSpeed's own reading of a configuration; it refuses names that it does not know."""
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig(config)


def test_the_published_recipe_is_all_that_deepspeed_is_told() -> None:
    spec = load_run_spec(CONFIGS / "dapo_qwen2.5_32b.toml")
    assert deepspeed_config(spec) == {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False, **LOSS_SCALE},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": torch.cuda.is_available(),
            **({} if torch.cuda.is_available() else {"reduce_bucket_size": 32_000_000}),
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        },
        "checkpoint": {"load_universal": False},
        "steps_per_print": 1 << 60,
    }


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_stage_and_precision_is_read_by_deepspeed_as_it_was_meant(
    one_rank: Ranks, stage: int, dtype: str
) -> None:
    if stage == 0 and dtype != "float32":
        with pytest.raises(ConfigError, match=r"zero_stage = 0 with model\.trainer_dtype = '.*float16' would sum"):
            spec_of(Path("m"), dtype, zero_stage=stage)
        return
    spec = spec_of(Path("m"), dtype, zero_stage=stage)
    read = parsed(deepspeed_config(spec))
    assert (read.zero_config.stage, read.zero_enabled) == (stage, stage > 0)
    assert (read.bfloat16_config.enabled, read.float16_config.enabled) == (dtype == "bfloat16", dtype == "float16")
    assert (read.gradient_clipping, read.gradient_accumulation_steps, read.grad_accum_dtype) == (1.0, 1, "fp32")
    assert read.float16_config.dynamic_loss_scale_args()["init_scale"] == 2**16
    assert read.float16_config.dynamic_loss_scale_args()["delayed_shift"] == 1
    copy = parsed(reference_config(spec))
    assert (copy.zero_config.stage, copy.bfloat16_config.enabled) == (3, dtype == "bfloat16")
    assert copy.float16_config.enabled == (dtype == "float16")


@pytest.mark.parametrize(
    ("trainer", "optimizer", "parameters"),
    [
        ({"zero_stage": 3}, None, None),
        ({"zero_stage": 1, "offload_optimizer": True}, "cpu", None),
        ({"zero_stage": 3, "offload_optimizer": True, "offload_parameters": True}, "cpu", "cpu"),
    ],
)
def test_offloading_is_read_by_deepspeed_as_it_was_meant(
    one_rank: Ranks, trainer: dict[str, Any], optimizer: str | None, parameters: str | None
) -> None:
    zero = parsed(deepspeed_config(spec_of(Path("m"), **trainer))).zero_config
    found = [part and part.device for part in (zero.offload_optimizer, zero.offload_param)]
    assert found == [optimizer, parameters]


def test_the_reference_model_is_offloaded_by_its_own_switch(one_rank: Ranks) -> None:
    spec = spec_of(Path("m"), offload_reference=True)
    assert parsed(reference_config(spec)).zero_config.offload_param.device == "cpu"
    assert parsed(reference_config(spec_of(Path("m")))).zero_config.offload_param is None


@pytest.mark.parametrize(("field", "stage", "least"), [("offload_optimizer", 0, 1), ("offload_parameters", 2, 3)])
def test_offloading_that_would_do_nothing_is_refused(field: str, stage: int, least: int) -> None:
    message = rf"trainer\.{field} = true needs trainer\.zero_stage = {least} or more, .*not {stage}"
    with pytest.raises(ConfigError, match=message):
        spec_of(Path("m"), "float32", zero_stage=stage, **{field: True})


def test_offloaded_or_not_and_in_bfloat16_an_update_is_the_same_one(tiny_model: Path, one_rank: Ranks) -> None:
    def gradient(dtype: str = "float32", **trainer: Any) -> dict[str, torch.Tensor]:
        spec = spec_of(tiny_model, dtype, **trainer)
        engine = GradientProbe(spec)
        train_batch(engine, spec, one_rank, *make_batch(spec))
        return engine.gradients[0]

    expected = gradient(zero_stage=0)
    assert distance(gradient(zero_stage=2), expected) < 1e-5
    assert distance(gradient(zero_stage=1, offload_optimizer=True), expected) < 1e-5
    assert distance(gradient(zero_stage=3, offload_optimizer=True, offload_parameters=True), expected) < 1e-5
    rounded = [gradient("bfloat16", zero_stage=stage) for stage in (1, 2, 3)]
    assert all(1e-5 < distance(found, expected) < 0.2 for found in rounded)
    assert all(distance(found, rounded[0]) < 0.02 for found in rounded)


@pytest.fixture
def float16(monkeypatch: pytest.MonkeyPatch, one_rank: Ranks) -> None:
    """Torch computes in float16 on any CPU; DeepSpeed asks for one that is quick at it."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)


@pytest.mark.usefixtures("float16")
@pytest.mark.parametrize("stage", [1, 3])
def test_a_float16_gradient_that_overflows_is_counted_and_made_again_so_that_no_update_is_lost(
    tiny_model: Path, one_rank: Ranks, stage: int
) -> None:
    spec = spec_of(tiny_model, "float16", zero_stage=stage)
    calm, overflowing = GradientProbe(spec), GradientProbe(spec)
    overflowing._optimizer.loss_scaler.cur_scale = 2.0**24
    batch = make_batch(spec)
    expected, found = (train_batch(engine, spec, one_rank, *batch) for engine in (calm, overflowing))
    scale = overflowing._optimizer.loss_scaler.cur_scale
    assert expected.overflows == 0
    assert found.overflows == 24 - torch.tensor(scale).log2().item() > 0
    assert found.updates == expected.updates == 2
    assert found.grad_norms == pytest.approx(expected.grad_norms, rel=1e-2)
    assert found.sums.tokens == expected.sums.tokens  # what was thrown away is in no statistic
    assert found.gap.tokens == expected.gap.tokens
    assert distance(weights(overflowing), weights(calm)) < 1e-3


@pytest.mark.usefixtures("float16")
def test_a_float16_gradient_that_overflows_whatever_the_scale_is_told_like_any_other(
    tiny_model: Path, one_rank: Ranks
) -> None:
    spec = spec_of(tiny_model, "float16", zero_stage=1)
    engine = ZeroEngine(load_policy(spec), spec, CPU)
    engine._optimizer.loss_scaler.cur_scale = 4.0
    before = weights(engine)
    batch, rollouts = make_batch(spec)
    share = assemble_share(plan_share(batch, spec, 0, 1), rollouts, spec, PackingLimits(64, True, 64))
    found = []
    for _ in range(4):
        logp, _ = engine.forward(share.mini_batches[0][0])
        engine.backward(logp.double().sum() * 1e12, last=True)
        found.append(engine.step(1e-3))
    assert found == [None, None, pytest.approx(math.nan, nan_ok=True), pytest.approx(math.nan, nan_ok=True)]
    assert engine._optimizer.loss_scaler.cur_scale == 1.0  # from 4, in two steps
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(engine).items())


def test_float16_is_refused_where_the_device_does_not_compute_in_it(
    tiny_model: Path, one_rank: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: False)
    with pytest.raises(ConfigError, match=r"model\.trainer_dtype = 'float16' needs a device .* cpu does not; use"):
        GradientProbe(spec_of(tiny_model, "float16", zero_stage=1))


def test_an_unsharded_gradient_that_is_not_finite_changes_no_weight(tiny_model: Path, one_rank: Ranks) -> None:
    spec = spec_of(tiny_model, zero_stage=0)
    policy = load_policy(spec)
    engine = ZeroEngine(policy, spec, CPU)
    before = weights(engine)
    engine.backward(torch.stack([p.sum() for p in policy.parameters()]).sum() * torch.nan, last=True)
    norm = engine.step(1e-3)
    assert norm is not None and math.isnan(norm)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(engine).items())


def test_a_checkpoint_of_stage_0_fits_any_number_of_ranks(tmp_path: Path) -> None:
    spec = spec_of(Path("m"), zero_stage=0)
    manifest = CheckpointManifest("run", 1, 1, "", 9, "", 2, world_size=4)
    restored = Restored(Checkpoint(1, 1, str(tmp_path), "", ""), manifest, ())
    claim = Claim("run", spec, "", 2, restored)
    assert fit_to_ranks(claim, 2, get_logger("trainer")) is claim
