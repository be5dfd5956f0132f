"""Which weights an evaluation is of: a model's own, or those of a published version, by content."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sluice.errors import ConfigError, WeightError
from sluice.evaluation.subject import find_subject
from tests.evaluation.publishing import publish, tensors


@pytest.fixture
def version(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model's weights, all bytes of the first tensor zero, published as v3.1."""
    return publish(tiny_model, tmp_path, changed=True)


def test_a_published_version_becomes_a_checkpoint_with_its_weights_and_the_files_of_its_model(
    version: Path, tiny_model: Path, tmp_path: Path
) -> None:
    subject = find_subject(str(version), str(tiny_model))
    assert subject.name == "tiny-v3.1"
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "rest").write_text("of an evaluation that was killed")
    made = subject.checkpoint(staging)
    assert not (made / "rest").exists()
    assert json.loads((made / "config.json").read_text())["vocab_size"] == 19
    (shard,) = made.glob("*.safetensors")
    published, original = tensors(shard), tensors(tiny_model / "model.safetensors")
    assert [name for name in original if published[name] != original[name]] == [next(iter(original))]


def test_a_damaged_version_is_never_evaluated(version: Path, tiny_model: Path, tmp_path: Path) -> None:
    (shard,) = version.glob("*.safetensors")
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(raw)
    with pytest.raises(WeightError, match="checksum"):
        find_subject(str(version), str(tiny_model)).checkpoint(tmp_path / "staging")


def test_weights_are_told_apart_by_their_bytes_and_not_by_where_they_lie(
    version: Path, tiny_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model, copy)
    before = find_subject(str(copy), None).weights()
    assert before == find_subject(str(tiny_model), None).weights()
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    assert find_subject(str(copy), None).weights() != before
    assert find_subject(str(version), str(tiny_model)).weights().startswith("v3.1 ")


def test_what_is_no_model_and_no_version_is_refused_with_what_to_give_instead(version: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only weights; name the model its run began as with --model"):
        find_subject(str(version), None)
    with pytest.raises(ConfigError, match="no such folder"):
        find_subject(str(tmp_path / "nowhere"), None)
    checkpoint = tmp_path / "20.1"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="a trainer's checkpoint k are those of the published version k"):
        find_subject(str(checkpoint), "models/tiny")
