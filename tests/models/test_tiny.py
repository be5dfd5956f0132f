"""The tiny model's maker."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from sluice.models import tiny, tiny_training
from sluice.models.directory import FINGERPRINT_FILE, build_once


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("models") / "tiny"
    assert tiny.make(target)
    return target


def test_the_tiny_model_adds_right_about_half_the_time_and_nearly_every_group_is_mixed(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    sums = {f"{a}+{b}=": str(a + b) for a in range(10) for b in range(10)}
    prompts = tokenizer(list(sums), return_tensors="pt").input_ids.repeat_interleave(8, dim=0)
    torch.manual_seed(0)
    ids = model.generate(prompts, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=4)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    right = torch.tensor([text.split("=")[1].strip() == sums[text.split("=")[0] + "="] for text in texts])
    share = right.view(-1, 8).float().mean(dim=1)
    assert 0.4 < share.mean() < 0.7
    assert ((share > 0) & (share < 1)).float().mean() > 0.8


def test_both_tokenizer_loaders_read_one_token_a_character_and_write_the_text_back(tiny_model: Path) -> None:
    text = "3+4=12\n"
    ids = Tokenizer.from_file(str(tiny_model / "tokenizer.json")).encode(text).ids
    assert len(ids) == len(text)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert tokenizer(text).input_ids == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id == json.loads((tiny_model / "config.json").read_text())["eos_token_id"]


def test_a_complete_model_is_not_made_again(tiny_model: Path) -> None:
    before = (tiny_model / "model.safetensors").stat().st_mtime_ns
    assert not tiny.make(tiny_model)
    assert (tiny_model / "model.safetensors").stat().st_mtime_ns == before


def test_the_same_seed_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_training, "TRAINING_STEPS", 3)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        tiny.make(tmp_path / name, seed)
    first, again, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b", "c"))
    assert first == again
    assert first != other


def test_a_maker_that_is_cut_off_leaves_no_model_behind(tmp_path: Path) -> None:
    def cut_off(staging: Path) -> None:
        (staging / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "model", {"maker": "test"}, cut_off)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_another_recipe_or_with_a_lost_file_is_replaced(tmp_path: Path) -> None:
    def build(staging: Path) -> None:
        (staging / "weights").write_text("weights")

    target = tmp_path / "model"
    assert build_once(target, {"seed": 0}, build)
    assert build_once(target, {"seed": 1}, build)
    (target / "weights").unlink()
    assert build_once(target, {"seed": 1}, build)
    assert (target / "weights").read_text() == "weights"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_directory_with_somebody_elses_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=FINGERPRINT_FILE):
        build_once(tmp_path, {"seed": 0}, lambda staging: None)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
