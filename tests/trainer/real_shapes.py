"""SmolLM2's widths, heads and vocabulary in one layer with random weights: real shapes at a price a test can pay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from sluice.config import RunSpec
from sluice.packed import TokenIds
from sluice.types import Batch, Rollout
from tests.trainer.script import make_batch, make_spec

STRIDE = 2500
"""Between the tiny model's token ids, so that they are spread over the vocabulary."""


def save_one_layer(folder: Path) -> Path:
    """A checkpoint with the shapes of SmolLM2-135M and a single layer."""
    return _save(folder, vocab_size=49152, num_hidden_layers=1)


def save_few_words(folder: Path) -> Path:
    """A checkpoint with the shapes of SmolLM2-135M in two layers, but for its vocabulary, which is small."""
    return _save(folder, vocab_size=64, num_hidden_layers=2)


def _save(folder: Path, vocab_size: int, num_hidden_layers: int) -> Path:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        dtype="float32",
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]  # not annotated there
    model.save_pretrained(folder)
    return folder


def real_spec(model: Path, /, **trainer: Any) -> RunSpec:
    fields = {"total_steps": 1, "prompts_per_step": 3, "max_tokens_per_micro_batch": 512, **trainer}
    return make_spec(model, rollout={"group_size": 4, "max_response_length": 8}, trainer=fields, optim={"lr": 1e-9})


def wide_batch(spec: RunSpec) -> tuple[Batch, dict[int, list[Rollout]]]:
    """The spec's batch with ids of the large vocabulary."""
    batch, rollouts = make_batch(spec)
    return batch, {n: [_spread(r) for r in group] for n, group in rollouts.items()}


def _spread(rollout: Rollout) -> Rollout:
    prompt, tokens = (TokenIds(STRIDE * i for i in ids) for ids in (rollout.prompt_token_ids, rollout.token_ids))
    return replace(rollout, prompt_token_ids=prompt, token_ids=tokens)
