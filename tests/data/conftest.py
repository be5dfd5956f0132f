"""A model folder with a real byte-level tokenizer and a chat template, made in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from sluice.config import RunSpec, parse_run_spec

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message.role == 'system' and loop.index0 > 0 %}{{ raise_exception('system comes first') }}{% endif %}\n"
    "<|{{ message.role }}|>{% generation %}{{ message.content | trim }}{% endgeneration %}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    "{% if strftime_now is defined %}{{ strftime_now('%Y')[:0] }}{% endif %}"
)
CORPUS = ["What is 3 + 4?\n\nThe answer is 7.\n", "solve it step by step.\n  Answer: 12\n"] * 8


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    folder.mkdir()
    write_model(folder)
    return folder


def write_model(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|end|>", "<|start|>"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=330, initial_alphabet=alphabet, special_tokens=special, show_progress=False, min_frequency=1
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    configs: dict[str, dict[str, Any]] = {
        "config.json": {"model_type": "llama", "vocab_size": 330, "eos_token_id": 0},
        "generation_config.json": {"eos_token_id": [0]},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|end|>",
            "bos_token": {"content": "<|start|>", "__type": "AddedToken"},
        },
    }
    for name, fields in configs.items():
        (folder / name).write_text(json.dumps(fields))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    save_file({"weight": np.zeros(2, np.float32)}, folder / "model.safetensors")


@pytest.fixture
def spec_of(model: Path) -> Callable[..., RunSpec]:
    """A run over the given files; keywords are fields of the data section, `stop_texts` and `path`."""

    def build(*files: Path, stop_texts: tuple[str, ...] = (), path: Path | None = None, **data: Any) -> RunSpec:
        return parse_run_spec(
            {
                "model": {"path": str(path or model)},
                "data": {"train_files": [str(f) for f in files or [Path("none.jsonl")]], "prompt_format": "raw"} | data,
                "rollout": {"max_response_length": 8, "stop_texts": stop_texts},
                "trainer": {"total_steps": 1},
            }
        )

    return build


def row(prompt: Any = "3+4=", truth: Any = "7", **fields: Any) -> dict[str, Any]:
    """One row in the schema; fields given as keywords replace or add columns."""
    reward_model = {"ground_truth": truth, "style": "rule"}
    return {"prompt": prompt, "data_source": "exact", "reward_model": reward_model} | fields


def write_jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path
