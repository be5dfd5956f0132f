"""The supervised training of the ablation's model; see ablation_task.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM

from bench.ablation_task import Task
from sluice.models.tiny_training import EOS_ID, IGNORED_LABEL, PAD_ID, make_config, make_tokenizer

STEPS = 600
ROWS_PER_STEP = 128
LEARNING_RATE = 4e-3
LONGEST_PAUSE = 24
LARGEST_ANSWER = 81


def write_model(staging: Path, task: Task, problems: Sequence[tuple[str, int]]) -> None:
    """Train on one thread with a seed of its own, and write weights, configuration and tokenizer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are then taken in one order, so that the recipe names one set of weights
    try:
        model = _train(task, problems)
    finally:
        torch.set_num_threads(threads)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers does not annotate it
        eos_token_id=EOS_ID, pad_token_id=PAD_ID
    )
    model.save_pretrained(staging)
    make_tokenizer().save_pretrained(staging)


def _train(task: Task, problems: Sequence[tuple[str, int]]) -> LlamaForCausalLM:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(make_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    rows = _Rows(task, problems)
    for _ in range(STEPS):
        ids, labels = rows.draw(generator)
        model(input_ids=ids, attention_mask=(ids != PAD_ID).long(), labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model


class _Rows:
    """Problems as token ids, to draw supervised rows from."""

    def __init__(self, task: Task, problems: Sequence[tuple[str, int]]) -> None:
        tokenizer = make_tokenizer()
        self._prompts = [tokenizer.encode(prompt) for prompt, _ in problems]
        self._right = [answer for _, answer in problems]
        self._answers = [[*tokenizer.encode(f"{answer}\n"), EOS_ID] for answer in range(LARGEST_ANSWER + 1)]
        self._largest = [18 if "+" in prompt else LARGEST_ANSWER for prompt, _ in problems]
        self._spoilt = [task.spoilt_sums if "+" in prompt else task.spoilt_products for prompt, _ in problems]
        self._space = tokenizer.encode(" ")
        self._log_pause = math.log(task.pause)

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Token ids and labels, both [ROWS_PER_STEP, length]; the loss sees responses only."""
        chances = torch.rand(ROWS_PER_STEP, 4, generator=generator).tolist()
        rows = [self._row(*row) for row in chances]
        longest = max(len(prompt) + len(response) for prompt, response in rows)
        ids = torch.full((ROWS_PER_STEP, longest), PAD_ID)
        labels = torch.full((ROWS_PER_STEP, longest), IGNORED_LABEL)
        for at, (prompt, response) in enumerate(rows):
            end = len(prompt) + len(response)
            ids[at, :end] = torch.tensor(prompt + response)
            labels[at, len(prompt) : end] = torch.tensor(response)
        return ids, labels

    def _row(self, which: float, pause: float, spoil: float, guess: float) -> tuple[list[int], list[int]]:
        problem = int(which * len(self._prompts))
        spoilt = spoil < self._spoilt[problem]
        answer = int(guess * (self._largest[problem] + 1)) if spoilt else self._right[problem]
        spaces = min(int(math.log1p(-pause) / self._log_pause), LONGEST_PAUSE)
        return self._prompts[problem], self._space * spaces + self._answers[answer]
