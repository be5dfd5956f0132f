"""What a checkpoint's config.json says about the shape of the model, for the architectures the engine computes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORTED_MODEL_TYPES = ("llama", "qwen2")


class UnsupportedModelError(ValueError):
    """The checkpoint needs something the engine does not compute; the message names it."""


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of a decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU."""

    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    qkv_bias: bool
    tied_embeddings: bool
    eos_token_ids: frozenset[int]

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_architecture(model_dir: Path) -> Architecture:
    """Read config.json and generation_config.json of a Hugging Face checkpoint.

    Raises UnsupportedModelError, naming the setting, its value and what is supported.
    """
    path = model_dir / "config.json"
    if not path.is_file():
        raise UnsupportedModelError(f"{path} does not exist: --model must name a Hugging Face model directory")
    config = _read_object(path)
    _refuse_unsupported(config)
    try:
        return _architecture(model_dir, config)
    except KeyError as error:
        raise UnsupportedModelError(f"{path} has no {error.args[0]}") from None


def _architecture(model_dir: Path, config: dict[str, Any]) -> Architecture:
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    kv_heads = {"num_key_value_heads": config.get("num_key_value_heads") or num_heads}
    width = {"head_dim": config.get("head_dim") or hidden_size // num_heads}
    return Architecture(
        model_type=config["model_type"],
        architectures=tuple(map(str, config.get("architectures") or ())),
        vocab_size=_size(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_size(config, "intermediate_size"),
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_size(kv_heads, "num_key_value_heads"),
        head_dim=_size(width, "head_dim"),
        context_length=_size(config, "max_position_embeddings"),
        rms_norm_eps=_number(config, "rms_norm_eps"),
        rope_theta=_number(_rope(config), "rope_theta"),
        qkv_bias=config["model_type"] == "qwen2",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        eos_token_ids=_eos_token_ids(model_dir, config),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} holds a {type(value).__name__}; it must be an object")
    return value


def _size(config: dict[str, Any], name: str) -> int:
    value = config[name]
    if type(value) is not int or value < 1:
        raise UnsupportedModelError(f"config.json has {name}={value!r}; it must be a whole number of at least 1")
    return value


def _number(config: dict[str, Any], name: str) -> float:
    value = config[name]
    if type(value) not in {int, float}:
        raise UnsupportedModelError(f"config.json has {name}={value!r}; it must be a number")
    return float(value)


def _refuse_unsupported(config: dict[str, Any]) -> None:
    checks = (
        ("model_type", config.get("model_type"), SUPPORTED_MODEL_TYPES),
        ("hidden_act", config.get("hidden_act", "silu"), ("silu",)),
        ("rope_type", _rope(config).get("rope_type"), ("default",)),
        # Qwen2 always has biases on queries, keys and values; Llama's switch would also put one on the output.
        ("attention_bias", bool(config.get("attention_bias", False)), (False,)),
        ("mlp_bias", bool(config.get("mlp_bias", False)), (False,)),
        ("use_sliding_window", bool(config.get("use_sliding_window", False)), (False,)),
    )
    for name, value, supported in checks:
        if value not in supported:
            allowed = ", ".join(str(choice) for choice in supported)
            raise UnsupportedModelError(f"config.json has {name}={value}; the CPU engine supports: {allowed}")


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings, which transformers 5 keeps in `rope_parameters` and older files in two other keys."""
    parameters = config.get("rope_parameters")
    if parameters:
        return {"rope_type": "default", "rope_theta": 10000.0, **parameters}
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    return {"rope_type": kind, "rope_theta": config.get("rope_theta", 10000.0)}


def _eos_token_ids(model_dir: Path, config: dict[str, Any]) -> frozenset[int]:
    path = model_dir / "generation_config.json"
    generation = _read_object(path) if path.is_file() else {}
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise UnsupportedModelError(f"eos_token_id={value!r}; it must be a token id or a list of them")
    return frozenset(ids)
