"""A dry run prints a run file that is exactly the run, and what its numbers mean."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from sluice.cli import main
from sluice.cli.estimate import Architecture, estimate
from sluice.cli.resolve import arithmetic, resolve
from sluice.config import load_run_spec
from sluice.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.rglob("*.toml"))
LADDER = sorted((FOLDER / "ablation").glob("*.toml"))


@pytest.mark.parametrize("file", CONFIGS, ids=[file.name for file in CONFIGS])
def test_the_printed_run_file_is_the_same_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(file), "--dry-run"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert load_run_spec(printed) == load_run_spec(file)


@pytest.mark.parametrize("file", CONFIGS, ids=[file.name for file in CONFIGS])
def test_the_data_of_every_config_is_there(file: Path) -> None:
    for path in load_run_spec(file).data.train_files:
        assert path.startswith("hub:") or Path(path).is_file(), path


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Fields of two specs that differ, names aside."""
    return {
        f"{section}.{key}"
        for section, fields in after.items()
        if isinstance(fields, dict)
        for key, value in fields.items()
        if before[section][key] != value
    }


def test_each_rung_of_the_ablation_ladder_changes_one_thing() -> None:
    specs = [load_run_spec(file).model_dump() for file in LADDER]
    rungs = [changed(lower, higher) for lower, higher in pairwise(specs)]
    assert rungs == [
        {"algorithm.overlong_filtering"},
        {"algorithm.clip_ratio_high"},
        {"reward.overlong_buffer"},
        {"algorithm.loss_agg_mode"},
        {"filter.enable", "filter.mode"},
    ]
    whole = load_run_spec(FOLDER / "dapo_qwen2.5_32b.toml").model_dump()
    assert changed(specs[-1], whole) == {"algorithm.overlong_filtering"}


def test_the_published_recipe_has_the_published_numbers() -> None:
    spec = load_run_spec(FOLDER / "dapo_qwen2.5_32b.toml")
    rollouts = spec.trainer.prompts_per_step * spec.rollout.group_size
    assert (rollouts, rollouts // spec.trainer.updates_per_step, spec.filter.gen_batch_size) == (8192, 512, 1536)
    assert (spec.algorithm.clip_ratio_low, spec.algorithm.clip_ratio_high, spec.algorithm.clip_ratio_c) == (
        0.2,
        0.28,
        10,
    )
    assert (spec.rollout.max_response_length, spec.reward.overlong_buffer) == (16384 + 4096, 4096)
    assert (spec.optim.lr, spec.optim.lr_warmup_steps, spec.optim.weight_decay) == (1e-6, 10, 0.1)
    assert spec.algorithm.importance_weight_cap is None and spec.algorithm.kl_loss_coef == 0


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m-instruct"])
def test_the_estimate_knows_how_many_parameters_a_model_has(name: str) -> None:
    folder = Path("models") / name
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        stored = sum(math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())  # noqa: SIM118
    assert Architecture.read(folder / "config.json").parameters == stored


def test_the_estimate_of_the_published_recipe_fits_its_machines(capsys: pytest.CaptureFixture[str]) -> None:
    shape = str(FOLDER / "architectures" / "qwen2.5_32b.json")
    recipe = str(FOLDER / "dapo_qwen2.5_32b.toml")
    assert main(["run", recipe, "--dry-run", "--gpus", "128", "--architecture", shape]) == 0
    errors = capsys.readouterr().err
    assert "32.76 billion" in errors
    memory = re.search(r"about ([0-9.]+) GB with 128", errors)
    assert memory is not None and 10 < float(memory[1]) < 80
    assert "16 at a time, of at most 180,224 tokens: each on 8 GPUs, with 22,528 tokens and 5 of 40" in errors


@pytest.mark.parametrize(
    ("gpus", "shared", "message"),
    [
        (12, 8, "sequence_parallel = 8 must divide .* --gpus 12"),
        (8, 8, "= 8 is more than the model's 4 attention heads"),
    ],
)
def test_gpus_that_cannot_share_micro_batches_are_named_in_a_dry_run(gpus: int, shared: int, message: str) -> None:
    spec = load_run_spec(Path("configs/tiny.toml"))
    spec = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"sequence_parallel": shared})})
    with pytest.raises(ConfigError, match=message):
        estimate(spec, Architecture.read(Path("models/tiny/config.json")), gpus)


def test_heads_that_ranks_cannot_share_evenly_are_said_in_a_dry_run() -> None:
    spec = load_run_spec(Path("configs/tiny.toml"))
    spec = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"sequence_parallel": 3})})
    lines = dict(estimate(spec, Architecture.read(Path("models/tiny/config.json")), 6))
    assert lines["micro-batches"].startswith("2 at a time") and "at most 2 of 4" in lines["micro-batches"]


def test_the_estimate_of_adapters_counts_what_peft_trains_and_publishes_whole_weights() -> None:
    architecture = Architecture.read(Path("models/tiny/config.json"))
    sizes = {"whole": ["lora.rank=0"], "all": [], "two": ['lora.target_modules=["q_proj", "mlp.down_proj"]']}
    specs = {
        name: resolve(Path("configs/demo.toml"), ["lora.rank=4", "algorithm.kl_loss_coef=0.1", *more])
        for name, more in sizes.items()
    }
    hidden, inner, key = architecture.hidden_size, architecture.intermediate_size, 2 * architecture.head_dim
    one_layer = 4 * (2 * hidden + 2 * (hidden + key) + 2 * hidden + 3 * (hidden + inner))
    assert architecture.adapter_parameters(specs["all"].lora) == one_layer * architecture.num_hidden_layers
    assert architecture.adapter_parameters(specs["two"].lora) == 4 * (2 * hidden + hidden + inner) * 2

    large = Architecture.read(FOLDER / "architectures" / "qwen2.5_32b.json")
    whole, adapted = (dict(estimate(specs[name], large, 8)) for name in ("whole", "all"))
    assert re.search(r"optimizer 49\.1, reference 8\.2", whole["a trainer's GPU"])
    assert re.search(r"adapters of rank 4 train 33\.6 million", adapted["parameters"])
    assert not re.search("reference", adapted["a trainer's GPU"])
    assert adapted["weights on the wire"] == whole["weights on the wire"]


def test_a_run_file_extends_another_field_by_field_and_never_itself(tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    base = Path("configs/tiny.toml").resolve()
    child.write_text(f'extends = "{base}"\n[rollout]\ngroup_size = 3\n[asynchrony]\nmax_staleness = 2\n')
    spec, original = load_run_spec(child), load_run_spec(base)
    assert (spec.rollout.group_size, spec.asynchrony.max_staleness) == (3, 2)
    assert spec.rollout.max_response_length == original.rollout.max_response_length
    child.write_text('extends = "child.toml"\n')
    with pytest.raises(ConfigError, match="extends itself"):
        load_run_spec(child)
    child.write_text("extends = 3\n")
    with pytest.raises(ConfigError, match="must be the path of another run file"):
        load_run_spec(child)


def test_overrides_are_toml_values_or_plain_words() -> None:
    spec = resolve(
        Path("configs/demo.toml"),
        [
            "trainer.total_steps=3",
            "trainer.target_reward=none",
            "optim.lr = 2e-5",
            'rollout.stop_texts=["\\n", "."]',
            "weights.transport=grpc",
            'model.path="models/tiny"',
        ],
    )
    assert (spec.trainer.total_steps, spec.trainer.target_reward, spec.optim.lr) == (3, None, 2e-5)
    assert spec.rollout.stop_texts == ("\n", ".")
    assert (spec.weights.transport, spec.model.path) == ("grpc", "models/tiny")


def test_the_arithmetic_says_how_many_rollouts_a_step_takes() -> None:
    lines = dict(arithmetic(resolve(Path("configs/demo.toml"), ["trainer.updates_per_step=4"])))
    assert lines["a training step"] == "16 kept groups × 8 rollouts = 128 rollouts"
    assert lines["an optimizer update"] == "32 rollouts; 4 in a training step"
    assert lines["groups not yet trained"].startswith("at most 32 ")
    assert lines["tokens of a row"].startswith("at most 40 = 32 prompt + 8 response; at least 51 rows")


def test_a_run_of_one_step_has_no_more_groups_than_it_trains() -> None:
    lines = dict(arithmetic(resolve(Path("configs/demo.toml"), ["trainer.total_steps=1"])))
    assert lines["groups not yet trained"].startswith("at most 16 ")


def test_a_dry_run_names_files_that_are_not_here_yet_and_still_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "configs/tiny.toml", "--set", 'data.train_files=["absent.jsonl"]', "--dry-run"]
    measured = ["--set", "evaluation.every_steps=5", "--set", 'evaluation.sets=[{name="aime", files=["away.jsonl"]}]']
    assert main([*arguments, *measured, "--set", "model.path=models/absent"]) == 0
    errors = capsys.readouterr().err
    assert "data.train_files: absent.jsonl" in errors and "model.path = models/absent" in errors
    assert "evaluation.sets, aime: away.jsonl" in errors
