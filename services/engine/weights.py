"""The model's tensors: where each Hugging Face name lives, and how a whole set of them is replaced in place.

Query, key and value matrices are stored as one, and so are gate and up: fewer, larger products. A checkpoint's
tensor is copied into its slice of the fused one. Every name and shape is verified before the first byte changes, so
a refused update leaves the old weights whole.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from services.engine.architecture import Architecture

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class WeightsError(ValueError):
    """A checkpoint does not fit the model; nothing was changed."""


class Linear:
    """A matrix (out, in) with an optional bias, and a copy of it in the blocked layout of oneDNN.

    The blocked layout saves the rearranging that a plain bf16 product does at each call: at 8 rows that halves the
    time. oneDNN gains nothing in fp32, where the plain matrix is used.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self._packed: torch.Tensor | None = None

    def pack(self) -> None:
        """Renew the blocked copy; to be called whenever `weight` has changed."""
        if self.weight.dtype == torch.bfloat16 and torch._C._has_mkldnn:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, 32)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], None)
        return product


@dataclass
class Layer:
    """The tensors of one decoder layer."""

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Weights:
    """All tensors of the model, in one dtype, addressed both by layer and by Hugging Face name."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        a = architecture
        self.dtype = dtype
        self._targets: dict[str, torch.Tensor] = {}
        self.embedding = self._register(EMBEDDING, torch.zeros(a.vocab_size, a.hidden_size, dtype=dtype))
        self.layers = [self._layer(a, index) for index in range(a.num_layers)]
        self.final_norm = self._register("model.norm.weight", torch.zeros(a.hidden_size, dtype=dtype))
        self._tied = a.tied_embeddings
        head = self.embedding if a.tied_embeddings else torch.zeros_like(self.embedding)
        self.head = Linear(self.embedding if a.tied_embeddings else self._register(HEAD, head), None)

    def _register(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self._targets[name] = tensor
        return tensor

    def _layer(self, a: Architecture, index: int) -> Layer:
        prefix = f"model.layers.{index}."
        qkv_parts = {"q_proj": a.query_size, "k_proj": a.kv_size, "v_proj": a.kv_size}
        gate_up_parts = {"gate_proj": a.intermediate_size, "up_proj": a.intermediate_size}
        norms = [torch.zeros(a.hidden_size, dtype=self.dtype) for _ in range(2)]
        return Layer(
            input_norm=self._register(f"{prefix}input_layernorm.weight", norms[0]),
            qkv=self._fused(f"{prefix}self_attn.", qkv_parts, a.hidden_size, bias=a.qkv_bias),
            output=self._fused(f"{prefix}self_attn.", {"o_proj": a.hidden_size}, a.query_size),
            post_norm=self._register(f"{prefix}post_attention_layernorm.weight", norms[1]),
            gate_up=self._fused(f"{prefix}mlp.", gate_up_parts, a.hidden_size),
            down=self._fused(f"{prefix}mlp.", {"down_proj": a.hidden_size}, a.intermediate_size),
        )

    def _fused(self, prefix: str, parts: dict[str, int], inputs: int, bias: bool = False) -> Linear:
        outputs = sum(parts.values())
        weight = torch.zeros(outputs, inputs, dtype=self.dtype)
        biases = torch.zeros(outputs, dtype=self.dtype) if bias else None
        start = 0
        for name, size in parts.items():
            self._register(f"{prefix}{name}.weight", weight[start : start + size])
            if biases is not None:
                self._register(f"{prefix}{name}.bias", biases[start : start + size])
            start += size
        return Linear(weight, biases)

    @property
    def num_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self._targets.values())

    def load(self, directory: Path) -> None:
        """Replace every tensor by the safetensors shards in `directory`, which needs no config and no tokenizer.

        A tied `lm_head.weight` may be there or not. Raises WeightsError, with the weights untouched, when a tensor
        is missing, unknown or of another shape, or a file cannot be read.
        """
        with ExitStack() as stack:
            sources = _open_shards(directory, stack)
            self._verify(sources, directory)
            for name, target in self._targets.items():
                target.copy_(sources[name].get_tensor(name))
        self._pack()

    def _verify(self, sources: dict[str, Any], directory: Path) -> None:
        unknown = sorted(set(sources) - set(self._targets) - ({HEAD} if self._tied else set()))
        missing = sorted(set(self._targets) - set(sources))
        if unknown or missing:
            raise WeightsError(
                f"{directory} does not hold this model: missing tensors {missing[:5]} ({len(missing)} in all), "
                f"unknown tensors {unknown[:5]} ({len(unknown)} in all)"
            )
        for name, target in self._targets.items():
            shape = tuple(sources[name].get_slice(name).get_shape())
            if shape != tuple(target.shape):
                raise WeightsError(f"{name} in {directory} has shape {shape}, the model needs {tuple(target.shape)}")

    def _pack(self) -> None:
        for layer in self.layers:
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                linear.pack()
        self.head.pack()

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of a Hugging Face name, a tied head included; raises KeyError for another name."""
        return self.embedding if name == HEAD and self._tied else self._targets[name]

    def checksums(self) -> dict[str, str]:
        """SHA-256 of each tensor's bytes as the engine holds them, by Hugging Face name."""
        return {name: _sha256(tensor) for name, tensor in sorted(self._targets.items())}


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).hexdigest()


def _open_shards(directory: Path, stack: ExitStack) -> dict[str, Any]:
    """Map each tensor name in the directory's shards to the open (memory-mapped) shard that holds it."""
    sources: dict[str, Any] = {}
    for path in _shard_paths(directory):
        try:
            shard = stack.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{path} cannot be read as safetensors: {error}") from error
        for name in shard.keys():  # noqa: SIM118  # a shard is no mapping: it has keys() but is not iterable
            if name in sources:
                raise WeightsError(f"{name} is in two shards of {directory}")
            sources[name] = shard
    return sources


def _shard_paths(directory: Path) -> Iterator[Path]:
    """The shards an index file names, else every safetensors file of the directory."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{index} names no shards: {error!r}") from error
        return iter([directory / name for name in names])
    paths = sorted(directory.glob("*.safetensors")) if directory.is_dir() else []
    if not paths:
        raise WeightsError(f"{directory} holds no *.safetensors files: model_path must be a directory of shards")
    return iter(paths)
