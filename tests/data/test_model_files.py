"""What a run needs from its model folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sluice.config import RunSpec
from sluice.data import check_model, load_prompts, stop_token_ids
from sluice.errors import ConfigError
from tests.data.conftest import row, write_jsonl, write_model

SpecOf = Callable[..., RunSpec]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of this test's own: it may be damaged."""
    write_model(tmp_path)
    return tmp_path


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_complete_model_passes(spec_of: SpecOf, model: Path) -> None:
    check_model(spec_of(prompt_format="chat"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_each_missing_file_is_named(spec_of: SpecOf, folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"missing {name}"):
        check_model(spec_of(path=folder))


def test_a_missing_shard_is_named(spec_of: SpecOf, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1-of-2.safetensors")
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"missing model-2-of-2\.safetensors$"):
        check_model(spec_of(path=folder))


def test_a_folder_that_does_not_exist_is_named(spec_of: SpecOf, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.path = .*nowhere.*: no such folder"):
        check_model(spec_of(path=tmp_path / "nowhere"))


def test_a_chat_run_needs_a_chat_template_and_a_raw_run_does_not(spec_of: SpecOf, folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    check_model(spec_of(path=folder))
    with pytest.raises(ConfigError, match="has no chat template"):
        check_model(spec_of(path=folder, prompt_format="chat"))


def test_a_template_inside_the_tokenizers_configuration_is_found(spec_of: SpecOf, folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    templates = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}!"}]
    file = write_jsonl(tmp_path / "a.jsonl", row("1"))
    for value in (templates, "{{ messages[0].content }}!"):
        edit(folder / "tokenizer_config.json", chat_template=value)
        assert load_prompts(spec_of(file, path=folder, prompt_format="chat")).row(0).text == "1!"


@pytest.mark.parametrize("template", ["{% for %}", "{{ 1"])
def test_a_template_that_does_not_compile_is_refused(spec_of: SpecOf, folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match="does not compile"):
        check_model(spec_of(path=folder, prompt_format="chat"))


def test_a_template_cannot_reach_into_the_process(spec_of: SpecOf, folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ConfigError, match="refuses it"):
        load_prompts(spec_of(write_jsonl(tmp_path / "a.jsonl", row()), path=folder, prompt_format="chat"))


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(spec_of: SpecOf, folder: Path) -> None:
    edit(folder / "config.json", vocab_size=20)
    with pytest.raises(ConfigError, match=r"vocab_size = 20; tokenizer and weights are not of one model"):
        check_model(spec_of(path=folder))


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_damaged_file_is_named(spec_of: SpecOf, folder: Path, name: str) -> None:
    (folder / name).write_text('{"model": ')
    with pytest.raises(ConfigError, match=name):
        check_model(spec_of(path=folder))


def test_stop_tokens_are_the_end_token_and_every_token_whose_text_has_a_stop_text(spec_of: SpecOf, model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = stop_token_ids(spec_of(stop_texts=("\n",)))
    spelt = {tokenizer.id_to_token(i) for i in ids}
    assert {"<|end|>", "Ċ", "ĊĠ"} <= spelt
    for token, i in tokenizer.get_vocab().items():
        assert (i in ids) == ("Ċ" in token or token == "<|end|>")
    assert list(ids) == sorted(ids)


def test_end_tokens_come_from_the_first_file_that_names_one(spec_of: SpecOf, folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[5, 3])
    assert stop_token_ids(spec_of(path=folder)) == (3, 5)
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=7)
    assert stop_token_ids(spec_of(path=folder)) == (7,)
    edit(folder / "config.json", eos_token_id=None)
    assert stop_token_ids(spec_of(path=folder)) == (0,)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match="names an end token"):
        stop_token_ids(spec_of(path=folder))


def test_a_stop_text_that_no_token_has_is_refused(spec_of: SpecOf) -> None:
    with pytest.raises(ConfigError, match="'zebra', so it would never stop"):
        stop_token_ids(spec_of(stop_texts=("\n", "zebra")))


def test_reading_data_and_model_loads_neither_torch_nor_transformers(spec_of: SpecOf, tmp_path: Path) -> None:
    spec = spec_of(write_jsonl(tmp_path / "a.jsonl", row()), stop_texts=("\n",), prompt_format="chat")
    code = (
        "import sys; from sluice.config import RunSpec; from sluice.data import *\n"
        "spec = RunSpec.model_validate_json(sys.stdin.read())\n"
        "check_model(spec); load_prompts(spec).row(0); stop_token_ids(spec)\n"
        "sys.exit(' '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=spec.canonical_json, text=True, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("cut", [0, 4, -1])
def test_a_weights_file_that_is_cut_or_something_else_is_refused_by_name(
    spec_of: SpecOf, folder: Path, cut: int
) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:cut])
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a whole safetensors file"):
        check_model(spec_of(path=folder))
