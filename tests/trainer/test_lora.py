"""Training adapters: what peft would compute, on any stage and number of ranks; whole weights for everybody else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.trainer.adapters import check_trained_form, trained_form
from services.trainer.claim import Claim
from services.trainer.policy import load_policy
from services.trainer.publish import Publisher
from services.trainer.ranks import Ranks
from services.trainer.replay.comparison import Comparison
from services.trainer.replay.recording import Recording
from services.trainer.universal import universal_form
from services.trainer.zero import ZeroEngine
from sluice.cli import main
from sluice.config import RunSpec
from sluice.errors import ConfigError
from sluice.telemetry import get_logger
from sluice.types import PolicyVersion, RunCreated, Version
from tests.trainer import resizing
from tests.trainer.reference import PlainTrainer, distance
from tests.trainer.script import make_batch, make_spec
from tests.trainer.updating import CPU, LR, GradientProbe, adapters, lora_spec, several_groups, train_batch, weights

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.distributed:FutureWarning", "ignore:`is_gradient_checkpointing`:FutureWarning"
)
SAME = 1e-5
"""Relative difference of gradients, in float32."""


def wrapped(causal: Any, spec: RunSpec, values: Mapping[str, Tensor]) -> Any:
    """The model with peft's own adapters, of these values."""
    targets = list(spec.lora.target_modules or ()) or "all-linear"
    config = peft.LoraConfig(
        r=spec.lora.rank, lora_alpha=spec.lora.alpha, target_modules=targets, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(causal, config)
    peft.set_peft_model_state_dict(model, dict(values))
    return model


def base_weights(spec: RunSpec) -> dict[str, Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(spec.model.path, dtype=torch.float32).named_parameters())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_and_a_kl_term_are_those_of_a_plain_peft_model(tiny_model: Path, one_rank: Ranks, stage: int) -> None:
    spec = lora_spec(tiny_model, stage, target_modules=["q_proj", "down_proj"] if stage == 1 else None)
    engine = GradientProbe(spec)
    plain = PlainTrainer(spec, lambda causal: wrapped(causal, spec, adapters(engine)), lambda causal: None)
    sampled = make_batch(spec)
    outcome = train_batch(engine, spec, one_rank, *sampled)
    expected = plain.step(*sampled, LR)
    assert outcome.sums.reference_kl > 0.0  # the base, while the second update starts away from it
    assert outcome.sums.loss == pytest.approx(sum(u.loss for u in expected), rel=1e-4)
    for found, update in zip(engine.gradients, expected, strict=True):
        assert distance(found, {name.replace(".default", ""): g for name, g in update.gradient.items()}) < SAME
    assert distance(adapters(engine), peft.get_peft_model_state_dict(plain.model)) < SAME


@pytest.mark.parametrize(("stage", "dtype"), [(1, "float32"), (3, "bfloat16")])
def test_merged_weights_are_the_base_and_its_adapters_to_the_bit_and_touch_nothing(
    tiny_model: Path, one_rank: Ranks, stage: int, dtype: str
) -> None:
    spec = lora_spec(tiny_model, stage, trainer_dtype=dtype)
    engine = GradientProbe(spec)
    base = {name: tensor.to(getattr(torch, dtype)).float() for name, tensor in base_weights(spec).items()}
    assert all(torch.equal(tensor, base[name]) for name, tensor in weights(engine).items())  # v0
    train_batch(engine, spec, one_rank, *make_batch(spec))
    trained = adapters(engine)
    merged = weights(engine)
    assert merged.keys() == base.keys()
    scale = spec.lora.alpha / spec.lora.rank
    for name, tensor in merged.items():
        down, up = (trained.get(f"base_model.model.{name.removesuffix('.weight')}.lora_{m}.weight") for m in "AB")
        if down is None or up is None:
            assert torch.equal(tensor.float(), base[name])
        else:
            assert torch.equal(tensor, base[name] + (up.float() @ down.float()) * scale)
            assert not torch.equal(tensor, base[name])
    assert all(torch.equal(tensor, merged[name]) for name, tensor in weights(engine).items())
    assert all(torch.equal(tensor, trained[name]) for name, tensor in adapters(engine).items())


@pytest.mark.parametrize("stage", [0, 3])
def test_a_checkpoint_holds_adapters_alone_and_training_goes_on_to_the_same_bits(
    tiny_model: Path, one_rank: Ranks, tmp_path: Path, stage: int
) -> None:
    spec = lora_spec(tiny_model, stage)
    engine, resumed = GradientProbe(spec), GradientProbe(spec)
    train_batch(engine, spec, one_rank, *make_batch(spec, 0))
    engine.save(tmp_path)
    size = sum(file.stat().st_size for file in (tmp_path / "engine").rglob("*"))
    trained = sum(4 * tensor.numel() for tensor in adapters(engine).values())
    assert 3 * trained < size < 5 * trained + 100_000  # the tiny model itself has 1.7 MB
    resumed.load(tmp_path)
    for each in (engine, resumed):
        train_batch(each, spec, one_rank, *make_batch(spec, 1))
    for find in (adapters, weights):
        expected = find(engine)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in find(resumed).items())


@pytest.mark.parametrize("stage", [3, 0])
def test_two_ranks_train_what_one_trains_and_one_takes_up_their_checkpoint(
    tiny_model: Path, one_rank: Ranks, two_ranks: tuple[Any, Path], tmp_path: Path, stage: int
) -> None:
    published, loss, norms = two_ranks[0]["lora", stage]
    spec = lora_spec(tiny_model, stage)
    engine = GradientProbe(spec)
    outcome = train_batch(engine, spec, one_rank, *make_batch(spec))
    assert norms == pytest.approx(outcome.grad_norms, rel=SAME)
    assert loss == pytest.approx(outcome.sums.loss, rel=SAME)
    assert distance(published, weights(engine)) < SAME

    written = two_ranks[1] / f"lora.{stage}"
    if stage:  # stage 0 shards nothing, so any number of ranks reads what was written
        written = universal_form(resizing.seal(tmp_path, written, ranks=2), get_logger("trainer"))
    resumed = GradientProbe(spec, universal=bool(stage))
    resumed.load(written)
    assert all(torch.equal(tensor, published[name]) for name, tensor in weights(resumed).items())
    for each in (engine, resumed):
        train_batch(each, spec, one_rank, *make_batch(spec, 1))
    assert distance(weights(resumed), weights(engine)) < SAME


def test_a_checkpoint_of_other_adapters_is_refused_with_what_differs(tiny_model: Path, tmp_path: Path) -> None:
    spec, full = lora_spec(tiny_model, 3), make_spec(tiny_model)
    check_trained_form(trained_form(spec), spec, "a")
    check_trained_form(None, full, "a")
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"another base")
    for found, wanted, message in (
        (None, spec, r"checkpoint a holds all weights; this run has lora\.rank = 4"),
        (trained_form(spec), full, r"holds adapters of lora\.rank = 4; this run has lora\.rank = 0"),
        (trained_form(lora_spec(tiny_model, 3, ["q_proj"])), spec, r"has lora\.target_modules = \['q_proj'\]; .* None"),
        (
            trained_form(lora_spec(tiny_model, 3, path=str(other))),
            spec,
            r"adapters of another base than model\.path = ",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            check_trained_form(found, wanted, "a")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ["q_proj", "c_attn"],
            "'c_attn' names nothing in this model, so no linear layer .* called down_proj, gate_proj, k_proj",
        ),
        (["embed_tokens"], r"names model\.embed_tokens, which is no linear layer before the head"),
        (["lm_head"], "names lm_head, which is no linear layer before the head"),
    ],
)
def test_layers_that_cannot_have_adapters_are_named(
    tiny_model: Path, one_rank: Ranks, targets: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_policy(lora_spec(tiny_model, 1, targets))


def test_a_published_version_is_exported_merged_and_as_adapters_that_give_the_same_logits(
    tiny_model: Path, one_rank: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = lora_spec(tiny_model, 1)
    engine = GradientProbe(spec)
    train_batch(engine, spec, one_rank, *make_batch(spec))
    publisher = Publisher(tmp_path / "weights", Claim("run-a", spec, "c0ffee", 1, None))
    written = publisher.write(engine, PolicyVersion(1, 1), 2)
    assert written is not None
    folder, manifest = written
    assert {tensor.name for tensor in manifest.tensors} == base_weights(spec).keys()

    command = ["export", str(folder), "--model", str(tiny_model), "--out"]
    assert main([*command, str(tmp_path / "merged")]) == 0
    assert main([*command, str(tmp_path / "adapter"), "--adapter"]) == 0
    assert "adapters of rank 4 in v1.1" in capsys.readouterr().out
    ids = torch.tensor([[5, 15, 6, 18, 11]])
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        initial = base(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
        adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))(ids).logits
    torch.testing.assert_close(adapted, merged, rtol=1e-5, atol=1e-5)
    assert float((adapted - initial).abs().max()) > 1e-2


def test_a_replay_that_publishes_the_same_adapters_under_its_own_name_is_found_equal(
    tiny_model: Path, one_rank: Ranks, tmp_path: Path
) -> None:
    spec = lora_spec(tiny_model, 1)
    engine = ZeroEngine(load_policy(spec), spec, CPU)
    claim = Claim("run-a", spec, "c0ffee", 1, None)
    written = [
        Publisher(tmp_path / name, claim).write(engine, PolicyVersion(1, lineage), 2)
        for lineage, name in enumerate(("replayed", "recorded"))
    ]
    (replayed, manifest), (_, recorded) = [found for found in written if found is not None]
    version = Version(PolicyVersion(1, 1), "", recorded.hash, "chain")
    created = RunCreated("run-a", spec.canonical_json, "c0ffee")
    comparison = Comparison(Recording(created, spec, (), (version,), (), {}, None), lambda _: None)
    comparison.announce(PolicyVersion(1, 0), replayed, manifest, "chain")
    assert manifest.hash != recorded.hash
    assert comparison.rows[0].hash_equal


def test_a_run_without_adapters_has_none_to_export(
    tiny_model: Path, one_rank: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = several_groups(tiny_model, 1)
    publisher = Publisher(tmp_path / "weights", Claim("run-a", spec, "c0ffee", 1, None))
    written = publisher.write(ZeroEngine(load_policy(spec), spec, CPU), PolicyVersion(0, 1), 0)
    assert written is not None
    out = tmp_path / "out"
    assert main(["export", str(written[0]), "--model", str(tiny_model), "--out", str(out), "--adapter"]) == 2
    assert "--adapter: v0.1 of run run-a has no adapters" in capsys.readouterr().err
    assert not out.exists()
