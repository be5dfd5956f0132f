"""What a run needs from its model folder: that the files are there, and which tokens end a response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sluice.config import RunSpec
from sluice.data.prompt_tokens import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    load_chat_template,
    load_tokenizer,
    read_json,
    token_of,
)
from sluice.errors import ConfigError
from sluice.locations import model_folder

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"


def check_model(spec: RunSpec) -> None:
    """Refuse a model folder that a service would stumble over later.

    Raises:
        ConfigError: names every missing file, or the vocabulary that does not fit the tokenizer.
    """
    folder = model_folder(spec.model.path)
    if not folder.is_dir():
        raise ConfigError(f"model.path = {spec.model.path!r}: no such folder")
    missing = [name for name in ("config.json", TOKENIZER_FILE) if not (folder / name).is_file()]
    missing += _missing_weights(folder)
    if missing:
        raise ConfigError(f"model.path = {spec.model.path!r}: missing {', '.join(missing)}")
    if spec.data.prompt_format == "chat":
        load_chat_template(folder)
    for file in sorted(folder.glob("*.safetensors")):
        _check_shard(file)
    _check_vocabulary(folder)


def tokenizer_of(spec: RunSpec) -> Tokenizer:
    """The model's tokenizer. Raises: ConfigError: it is missing or damaged."""
    return load_tokenizer(model_folder(spec.model.path))


def stop_token_ids(spec: RunSpec) -> tuple[int, ...]:
    """The tokens that end a response, sorted: the model's end tokens, and all whose text has a rollout.stop_texts.

    Raises:
        ConfigError: the model names no end token, or no token has one of the stop texts.
    """
    folder = model_folder(spec.model.path)
    ends = _end_tokens(folder)
    if not ends:
        raise ConfigError(
            f"model.path = {spec.model.path!r}: neither generation_config.json nor config.json nor "
            f"{TOKENIZER_CONFIG_FILE} names an end token (eos_token_id)"
        )
    return tuple(sorted(ends | _stopping_ids(folder, spec.rollout.stop_texts)))


def _stopping_ids(folder: Path, stop_texts: tuple[str, ...]) -> set[int]:
    if not stop_texts:
        return set()
    tokenizer = load_tokenizer(folder)
    ids = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    # The text of an id alone: a byte-level vocabulary spells a newline as another character, decoding undoes that.
    texts = tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False)
    for stop in stop_texts:
        if not stop or not any(stop in text for text in texts):
            raise ConfigError(
                f"rollout.stop_texts: no token of {folder} has the text {stop!r}, so it would never stop a response"
            )
    return {i for i, text in zip(ids, texts, strict=True) if any(stop in text for stop in stop_texts)}


def _end_tokens(folder: Path) -> set[int]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            ids = value if isinstance(value, list) else [value]
            if found := {i for i in ids if isinstance(i, int)}:
                return found
    if not (folder / TOKENIZER_CONFIG_FILE).is_file():
        return set()
    token = token_of(read_json(folder / TOKENIZER_CONFIG_FILE), "eos_token")
    token_id = load_tokenizer(folder).token_to_id(token) if token else None
    return set() if token_id is None else {token_id}


def _missing_weights(folder: Path) -> list[str]:
    index = folder / WEIGHTS_INDEX_FILE
    if not index.is_file():
        return [] if (folder / WEIGHTS_FILE).is_file() else [f"{WEIGHTS_FILE} (or {WEIGHTS_INDEX_FILE})"]
    weight_map: Any = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ConfigError(f"model.path: {index} has no weight_map")
    return [name for name in sorted(set(weight_map.values())) if not (folder / name).is_file()]


def _check_shard(file: Path) -> None:
    """A cut or foreign weights file shows in its header: eight bytes of length, JSON with offsets, then the data."""
    size = file.stat().st_size
    try:
        with file.open("rb") as shard:
            length = int.from_bytes(shard.read(8), "little")
            header = json.loads(shard.read(length)) if length <= size else {}
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError):
        ends = []
    if not ends or 8 + length + max(ends) != size:
        raise ConfigError(f"model.path: {file} is not a whole safetensors file ({size} bytes): cut, or something else")


def _check_vocabulary(folder: Path) -> None:
    size = read_json(folder / "config.json").get("vocab_size")
    largest = max(load_tokenizer(folder).get_vocab(with_added_tokens=True).values(), default=-1)
    if isinstance(size, int) and largest >= size:
        raise ConfigError(
            f"model.path = {str(folder)!r}: {TOKENIZER_FILE} has token id {largest}, but config.json has "
            f"vocab_size = {size}; tokenizer and weights are not of one model"
        )
