"""What a run file asks of GPUs and wires, from the architecture of its model alone: for a dry run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sluice.config import LoraConfig, RunSpec
from sluice.errors import ConfigError

GB, MILLION = 1e9, 1e6
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
OPTIMIZER_BYTES = 12
"""Per trained parameter: float32 master and AdamW's two moments."""
UNSHARDED_OPTIMIZER_BYTES = 8
"""At ZeRO stage 0 the float32 weights are the masters."""
ROLLOUT_TOKEN_BYTES = 8
"""On the wire: token id and log-prob of a response token."""
LAYER_ACTIVATIONS = 34
"""Bytes per token and hidden unit that a layer keeps in half precision, attention scores aside: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (2022), equation 2 without its last term."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a dense decoder: those of `config.json`, by the same names."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool
    head_dim: int
    attention_bias: bool

    @classmethod
    def read(cls, file: Path) -> Architecture:
        """Raises: ConfigError: the file is missing, or is not the config of a dense decoder."""
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
            heads = fields["num_attention_heads"]
            return cls(
                hidden_size=fields["hidden_size"],
                intermediate_size=fields["intermediate_size"],
                num_hidden_layers=fields["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=fields.get("num_key_value_heads", heads),
                vocab_size=fields["vocab_size"],
                tie_word_embeddings=fields.get("tie_word_embeddings", False),
                head_dim=fields.get("head_dim") or fields["hidden_size"] // heads,
                attention_bias=fields.get("attention_bias", fields.get("model_type") == "qwen2"),
            )
        except OSError as error:
            raise ConfigError(f"--architecture {file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"--architecture {file}: not the config.json of a dense decoder: {error!r}") from None

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's matrices, by the names that dense decoders give them."""
        h, inner = self.hidden_size, self.intermediate_size
        query, key = (heads * self.head_dim for heads in (self.num_attention_heads, self.num_key_value_heads))
        attention = {"q_proj": (h, query), "k_proj": (h, key), "v_proj": (h, key), "o_proj": (query, h)}
        mlp = {"gate_proj": (h, inner), "up_proj": (h, inner), "down_proj": (inner, h)}
        return {f"self_attn.{name}": shape for name, shape in attention.items()} | {
            f"mlp.{name}": shape for name, shape in mlp.items()
        }

    @property
    def layer_parameters(self) -> int:
        shapes = self.linear
        bias = sum(shapes[f"self_attn.{name}_proj"][1] for name in "qkv") if self.attention_bias else 0
        return sum(inputs * outputs for inputs, outputs in shapes.values()) + bias + 2 * self.hidden_size

    @property
    def parameters(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * self.layer_parameters + self.hidden_size

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Of A [rank, in] and B [out, rank] beside each matrix that gets them."""
        targets = tuple(f".{target}" for target in lora.target_modules or self.linear)
        sides = sum(sum(shape) for name, shape in self.linear.items() if f".{name}".endswith(targets))
        return lora.rank * sides * self.num_hidden_layers


def estimate(spec: RunSpec, model: Architecture, gpus: int) -> list[tuple[str, str]]:
    """(what, how much) lines: memory of one of the trainer's `gpus`, of the host for each, and traffic of a step.

    Raises:
        ConfigError: so many GPUs cannot share micro-batches of this model.
    """
    return [
        ("parameters", _parameters(spec, model)),
        ("micro-batches", _micro_batches(spec, model, gpus)),
        ("a trainer's GPU", _gpu(spec, model, gpus)),
        ("host memory per GPU", _host(spec, model, gpus)),
        ("rollouts on the wire", _rollouts(spec)),
        ("weights on the wire", _weights(spec, model)),
    ]


def _trained(spec: RunSpec, model: Architecture) -> int:
    """Parameters with a gradient and an optimizer state."""
    return model.adapter_parameters(spec.lora) if spec.lora.rank else model.parameters


def _parameters(spec: RunSpec, model: Architecture) -> str:
    text, trained = f"{model.parameters / GB:.2f} billion", _trained(spec, model)
    if not spec.lora.rank:
        return text
    return f"{text}; adapters of rank {spec.lora.rank} train {trained / MILLION:.1f} million beside them"


def _micro_batches(spec: RunSpec, model: Architecture, gpus: int) -> str:
    shared, tokens, heads = spec.trainer.sequence_parallel, spec.micro_batch_tokens, model.num_attention_heads
    if gpus % shared:
        raise ConfigError(
            f"trainer.sequence_parallel = {shared} must divide the number of the trainer's GPUs, --gpus {gpus}"
        )
    if shared > heads:
        raise ConfigError(f"trainer.sequence_parallel = {shared} is more than the model's {heads} attention heads")
    if shared == 1:
        return f"{gpus} at a time, of at most {tokens:,} tokens"
    most, uneven = -(-heads // shared), heads % shared
    return (
        f"{gpus // shared} at a time, of at most {tokens:,} tokens: each on {shared} GPUs, with "
        f"{spec.trainer.max_tokens_per_micro_batch:,} tokens and {'at most ' if uneven else ''}{most} of {heads} "
        f"attention heads on each{', so some wait for others' if uneven else ''}"
    )


def _gpu(spec: RunSpec, model: Architecture, gpus: int) -> str:
    t, size = spec.trainer, BYTES[spec.model.trainer_dtype]
    whole, trained = model.parameters, _trained(spec, model)
    loaded = whole + (trained if spec.lora.rank else 0)
    copy = bool(spec.algorithm.kl_loss_coef) and not spec.lora.rank and not t.offload_reference
    parts = {
        "weights": 0.0 if t.offload_parameters else size * loaded / (gpus if t.zero_stage == 3 else 1),
        "gradients": size * trained / (gpus if t.zero_stage >= 2 else 1),
        "optimizer": 0.0 if t.offload_optimizer else _optimizer(spec, trained, gpus),
        "reference": size * whole / gpus if copy else 0.0,
        "gathered layers": 2.0 * size * model.layer_parameters if t.zero_stage == 3 else 0.0,
        "activations": t.max_tokens_per_micro_batch * model.hidden_size * _bytes_kept(spec, model),
    }
    split = ", ".join(f"{name} {value / GB:.1f}" for name, value in parts.items() if value)
    return f"about {sum(parts.values()) / GB:.1f} GB with {gpus} of them: {split}"


def _optimizer(spec: RunSpec, trained: int, gpus: int) -> float:
    """Bytes of one rank."""
    return OPTIMIZER_BYTES * trained / gpus if spec.trainer.zero_stage else float(UNSHARDED_OPTIMIZER_BYTES * trained)


def _bytes_kept(spec: RunSpec, model: Architecture) -> float:
    """Bytes per token and hidden unit: all of every layer, or every layer's input and all of one layer."""
    if not spec.trainer.activation_checkpointing:
        return float(LAYER_ACTIVATIONS * model.num_hidden_layers)
    return float(BYTES[spec.model.trainer_dtype] * model.num_hidden_layers + LAYER_ACTIVATIONS)


def _host(spec: RunSpec, model: Architecture, gpus: int) -> str:
    t = spec.trainer
    shard = BYTES[spec.model.trainer_dtype] * model.parameters / gpus
    offloaded = _optimizer(spec, _trained(spec, model), gpus) * t.offload_optimizer + shard * t.offload_parameters
    offloaded += shard * (t.offload_reference and bool(spec.algorithm.kl_loss_coef) and not spec.lora.rank)
    return f"{offloaded / GB:.1f} GB offloaded" if offloaded else "nothing offloaded"


def _rollouts(spec: RunSpec) -> str:
    rollouts = spec.trainer.prompts_per_step * spec.rollout.group_size
    most = rollouts * spec.rollout.max_response_length * ROLLOUT_TOKEN_BYTES
    return f"at most {most / GB:.2f} GB of token ids and log-probs to the trainer in a step; dropped groups stay away"


def _weights(spec: RunSpec, model: Architecture) -> str:
    size = model.parameters * BYTES[spec.model.engine_dtype] / GB
    how = "read from the shared folder" if spec.weights.transport == "shared" else "streamed by the trainer"
    return f"{size:.1f} GB a policy version for each rollout worker, {how}"
