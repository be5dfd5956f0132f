"""The policy being trained: a Hugging Face causal model that answers with log-probs instead of logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.deepspeed import HfDeepSpeedConfig
from transformers.utils import logging as transformers_logging

from services.trainer.adapters import Adapters, add_adapters, base_name
from services.trainer.attention import function as attention
from services.trainer.head import LogProbHead
from services.trainer.packing import MicroBatch, PackingLimits
from services.trainer.sequence import SequenceGroup, Slice
from services.trainer.sharding import deepspeed_config, reference_config
from sluice.config import RunSpec
from sluice.errors import ConfigError
from sluice.locations import model_folder

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of families that change logits after the head, which the chunked head does not do."""
ATTENTION_UNIT_WIDTHS = 6
"""Row length, in hidden widths, at which attention costs as much as the matrix products of a layer."""
MASK_LENGTH = 512
"""Longest row that has a mask of its own, [L, L]; longer ones are attended to block by block."""


class Policy(nn.Module):
    """Body and head of a causal model. Parameters keep the names that its checkpoint has (`names`).

    `sequence`: the ranks that share its micro-batches, each with its part of all rows; None: there is only this one.
    """

    sequence: SequenceGroup | None = None

    def __init__(
        self, causal: Any, temperature: float, entropy_gradient: bool = False, adapters: Adapters | None = None
    ) -> None:
        super().__init__()
        self.adapters = adapters or Adapters()
        self.names: Mapping[nn.Parameter, str] = {
            **{parameter: base_name(name) for name, parameter in causal.named_parameters()},
            **self.adapters.names,
        }
        """Checkpoint name of each parameter; a tied head has that of the embedding."""
        self.body: Any = causal.base_model
        self.head = LogProbHead(causal.get_output_embeddings().weight, temperature, entropy_gradient)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the trained tokens, in nats: [n] float32 (float64 if the weights are).

        Log-probs have a gradient, entropies only if the loss has an entropy term.
        """
        if self.sequence is None:
            return self._log_probs(batch, batch)
        mine = self.sequence.slice(batch)
        logp, entropy = self.sequence.whole(torch.stack(self._log_probs(mine, batch)), mine.mine)
        return logp, entropy

    def _log_probs(self, nodes: MicroBatch | Slice, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Of the tokens that `nodes` predict: all of the micro-batch, or a slice of it."""
        given = attention.arguments(batch, self.body.dtype, self.sequence)
        states = self.body(
            input_ids=nodes.input_ids, position_ids=nodes.position_ids, use_cache=False, **given
        ).last_hidden_state
        attention.check_used(given)
        logp, entropy = self.head(states.flatten(0, 1)[nodes.nodes], nodes.slots, nodes.targets)
        return logp, entropy


def load_policy(spec: RunSpec, sequence: SequenceGroup | None = None) -> Policy:
    """The initial model (v0) in the trainer's dtype, without dropout, with the run's attention and adapters.

    With ZeRO-3 each rank keeps its shard of a parameter as soon as it is read: no rank ever holds the whole model.
    `torch.distributed` must have been joined.

    Raises:
        ConfigError: the folder holds no such model, or one that this trainer would train wrongly.
    """
    causal = _load_causal(spec, deepspeed_config(spec) if spec.trainer.zero_stage == 3 else None)
    adapters = add_adapters(causal, spec.lora, spec.trainer.seed) if spec.lora.rank else None
    if spec.trainer.activation_checkpointing:
        old_name = causal.gradient_checkpointing_enable  # transformers renames it between its releases 5 and 6
        getattr(causal, "activation_checkpointing_enable", old_name)({"use_reentrant": False})
    causal.train()  # activation checkpointing is off in eval mode
    policy = Policy(causal, spec.rollout.temperature, spec.algorithm.entropy_coeff > 0, adapters)
    policy.sequence = sequence
    return policy


def load_reference(spec: RunSpec, sequence: SequenceGroup | None = None) -> Policy:
    """The initial model again, frozen, and sharded as it is read. Raises: ConfigError: as `load_policy`."""
    causal = _load_causal(spec, reference_config(spec))
    causal.requires_grad_(False)
    causal.eval()
    policy = Policy(causal, spec.rollout.temperature)
    policy.sequence = sequence
    return policy


def _load_causal(spec: RunSpec, sharded_by: dict[str, Any] | None) -> Any:
    path, dtype = str(model_folder(spec.model.path)), DTYPES[spec.model.trainer_dtype]
    if not (Path(path) / "config.json").is_file():
        raise ConfigError(f"model.path = {path!r} holds no config.json; give the folder of a Hugging Face checkpoint")
    attention.install()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # not annotated there
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=spec.model.trust_remote_code)
        _check_architecture(config, spec)
        without_dropout(config)
        # While this object lives, transformers loads into shards.
        sharding: Any = None if sharded_by is None else HfDeepSpeedConfig(sharded_by)  # type: ignore[no-untyped-call]
        causal: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation=spec.model.attention,
            trust_remote_code=spec.model.trust_remote_code,
        )
        del sharding
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ConfigError(f"model.path = {path!r} cannot be loaded: {error}") from None
    if getattr(causal.get_output_embeddings(), "bias", None) is not None:
        raise ConfigError(f"model.path = {path!r} has a language-model head with a bias, which is not supported")
    return causal


def packing_limits(policy: Policy, spec: RunSpec) -> PackingLimits:
    """How micro-batches of this model are packed."""
    return PackingLimits(
        budget=spec.micro_batch_tokens,
        share=spec.trainer.prefix_sharing,
        attention_unit=ATTENTION_UNIT_WIDTHS * int(policy.body.config.hidden_size),
        single_row=spec.model.attention == "flash_attention_2",
        mask_length=MASK_LENGTH if spec.model.attention == "sdpa" else None,
        slices=spec.trainer.sequence_parallel,
    )


def without_dropout(config: Any) -> None:
    """Set every dropout probability to 0: log-probs must be those of the policy, and a replay must repeat them."""
    for name, value in config.to_dict().items():
        if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
            setattr(config, name, 0.0)


def _check_architecture(config: Any, spec: RunSpec) -> None:
    changed = [name for name in LOGIT_CHANGES if getattr(config, name, None) not in (None, 1.0)]
    if changed:
        raise ConfigError(f"model.path = {spec.model.path!r} sets {changed[0]}, which changes logits: not supported")
    longest = spec.data.max_prompt_length + spec.rollout.max_response_length
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if window is not None and window < longest:
        raise ConfigError(
            f"model.path = {spec.model.path!r} attends to a window of {window} tokens, less than "
            f"data.max_prompt_length + rollout.max_response_length = {longest}: not supported"
        )
    heads = config.get_text_config().num_attention_heads
    if spec.trainer.sequence_parallel > heads:
        raise ConfigError(
            f"trainer.sequence_parallel = {spec.trainer.sequence_parallel} is more than the {heads} attention heads of "
            f"model.path = {spec.model.path!r}: a rank would have none"
        )
