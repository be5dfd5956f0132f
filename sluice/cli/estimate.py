"""What a run file asks of GPUs and wires, from the architecture of its model alone: for a dry run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sluice.config import RunSpec
from sluice.errors import ConfigError

GB = 1e9
BYTES = {"bfloat16": 2, "float32": 4}
OPTIMIZER_BYTES = 12
"""Per parameter: float32 master and AdamW's two moments."""
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
    def layer_parameters(self) -> int:
        h, query = self.hidden_size, self.num_attention_heads * self.head_dim
        key_value = 2 * self.num_key_value_heads * self.head_dim
        bias = query + key_value if self.attention_bias else 0
        return h * query * 2 + h * key_value + bias + 3 * h * self.intermediate_size + 2 * h

    @property
    def parameters(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * self.layer_parameters + self.hidden_size


def estimate(spec: RunSpec, model: Architecture, gpus: int) -> list[tuple[str, str]]:
    """(what, how much) lines: memory of one of the trainer's `gpus`, of the host for each, and traffic of a step."""
    return [
        ("parameters", f"{model.parameters / GB:.2f} billion"),
        ("a trainer's GPU", _gpu(spec, model, gpus)),
        ("host memory per GPU", _host(spec, model, gpus)),
        ("rollouts on the wire", _rollouts(spec)),
        ("weights on the wire", _weights(spec, model)),
    ]


def _gpu(spec: RunSpec, model: Architecture, gpus: int) -> str:
    t, size = spec.trainer, BYTES[spec.model.trainer_dtype]
    shard = model.parameters / gpus
    tokens = t.max_tokens_per_micro_batch
    whole = model.parameters
    parts = {
        "weights": 0.0 if t.offload_parameters else size * (shard if t.zero_stage == 3 else whole),
        "gradients": size * (shard if t.zero_stage >= 2 else whole),
        "optimizer": 0.0 if t.offload_optimizer else OPTIMIZER_BYTES * shard,
        "gathered layers": 2.0 * size * model.layer_parameters if t.zero_stage == 3 else 0.0,
        "activations": tokens * model.hidden_size * _bytes_kept(spec, model),
    }
    split = ", ".join(f"{name} {value / GB:.1f}" for name, value in parts.items() if value)
    return f"about {sum(parts.values()) / GB:.1f} GB with {gpus} of them: {split}"


def _bytes_kept(spec: RunSpec, model: Architecture) -> float:
    """Bytes per token and hidden unit: all of every layer, or every layer's input and all of one layer."""
    if not spec.trainer.activation_checkpointing:
        return float(LAYER_ACTIVATIONS * model.num_hidden_layers)
    return float(BYTES[spec.model.trainer_dtype] * model.num_hidden_layers + LAYER_ACTIVATIONS)


def _host(spec: RunSpec, model: Architecture, gpus: int) -> str:
    t = spec.trainer
    shard = model.parameters / gpus
    offloaded = OPTIMIZER_BYTES * shard * t.offload_optimizer
    offloaded += BYTES[spec.model.trainer_dtype] * shard * t.offload_parameters
    return f"{offloaded / GB:.1f} GB offloaded" if offloaded else "nothing offloaded"


def _rollouts(spec: RunSpec) -> str:
    rollouts = spec.trainer.prompts_per_step * spec.rollout.group_size
    most = rollouts * spec.rollout.max_response_length * ROLLOUT_TOKEN_BYTES
    return f"at most {most / GB:.2f} GB of token ids and log-probs to the trainer in a step; dropped groups stay away"


def _weights(spec: RunSpec, model: Architecture) -> str:
    size = model.parameters * BYTES[spec.model.engine_dtype] / GB
    how = "read from the shared folder" if spec.weights.transport == "shared" else "streamed by the trainer"
    return f"{size:.1f} GB a policy version for each rollout worker, {how}"
