"""From a published version to a checkpoint that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sluice.cli import main
from sluice.errors import ConfigError
from sluice.types import PolicyVersion
from sluice.weights.export import export_checkpoint
from sluice.weights.publish import VersionWriter


@pytest.fixture
def trained(tiny_model: Path, tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A version of the tiny model with other weights, published in several shards, and those weights."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    writer = VersionWriter(
        tmp_path / "weights",
        "run-a",
        PolicyVersion(3, 1),
        parent=None,
        optimizer_updates=3,
        config_hash="c0ffee",
        shard_bytes=100_000,
    )
    weights = {name: parameter.detach() + 0.25 for name, parameter in model.named_parameters()}
    for name, tensor in weights.items():
        writer.add(name, "F32", tuple(tensor.shape), tensor.contiguous().numpy().tobytes())
    folder, _ = writer.commit()
    return folder, weights


def test_transformers_loads_the_export_with_every_weight_and_the_tokenizer(
    trained: tuple[Path, dict[str, torch.Tensor]], tiny_model: Path, tmp_path: Path
) -> None:
    folder, weights = trained
    out = tmp_path / "exports" / "model"
    assert main(["export", str(folder), "--model", str(tiny_model), "--out", str(out)]) == 0
    model = AutoModelForCausalLM.from_pretrained(out)
    loaded = dict(model.named_parameters())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    if model.config.tie_word_embeddings:
        assert model.lm_head.weight is model.model.embed_tokens.weight
    original = AutoTokenizer.from_pretrained(tiny_model)
    assert AutoTokenizer.from_pretrained(out)("3+4=").input_ids == original("3+4=").input_ids
    assert json.loads((out / "sluice_manifest.json").read_text())["run_id"] == "run-a"


def test_an_export_overwrites_nothing_and_leaves_nothing_half_done(
    trained: tuple[Path, dict[str, torch.Tensor]], tiny_model: Path, tmp_path: Path
) -> None:
    folder, _ = trained
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(ConfigError, match="is there already"):
        export_checkpoint(folder, tiny_model, out)
    (folder / "model-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        export_checkpoint(folder, tiny_model, tmp_path / "new")
    assert sorted(child.name for child in tmp_path.iterdir()) == ["out", "weights"]


def test_a_damaged_version_is_not_exported(
    trained: tuple[Path, dict[str, torch.Tensor]],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = trained
    shard = folder / "model-00001.safetensors"
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)
    assert main(["export", str(folder), "--model", str(tiny_model), "--out", str(tmp_path / "out")]) == 1
    assert "checksum" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
