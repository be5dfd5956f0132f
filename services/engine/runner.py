"""One prefill or one decode step: builds the model's input from samples, and gives each sample its next token."""

from collections import defaultdict
from collections.abc import Iterable

import torch

from services.engine.kv_cache import Arena, KvCache, capacity_for
from services.engine.model import Chunk, Model
from services.engine.request import FinishReason, Sample
from services.engine.sampling import Draw, sample, uniform_number

# Prompts of one forward pass may differ in length by this share: padding costs as much as tokens.
LENGTH_TOLERANCE = 0.25
# Logits of a scored prompt are made this many tokens at a time: all of them in fp32 could be larger than the model.
SCORED_TOKENS_AT_A_TIME = 64

Prompt = tuple[int, ...]


class Runner:
    """Runs the model for the samples in the cache."""

    def __init__(self, model: Model, cache: KvCache, max_prefill_tokens: int) -> None:
        self._model = model
        self._cache = cache
        self._max_prefill_tokens = max_prefill_tokens

    def prefill(self, admitted: list[Sample], version: str) -> int:
        """Give each sample a row with the keys and values of its tokens, and new ones their first token.

        Samples of one prompt share its prefill. Returns the number of prompt tokens computed.
        """
        by_prompt: dict[Prompt, list[Sample]] = defaultdict(list)
        for one in admitted:
            by_prompt[one.prompt].append(one)
        computed = 0
        for prompts in self._batches(by_prompt):
            self._prefill_prompts(prompts, by_prompt, version)
            computed += sum(len(prompt) for prompt in prompts)
        self._replay([one for one in admitted if one.output_ids])
        return computed

    def _batches(self, prompts: Iterable[Prompt]) -> list[list[Prompt]]:
        """Prompts of similar lengths together, up to the limit on prefilled tokens, longest first."""
        batches: list[list[Prompt]] = []
        for prompt in sorted(prompts, key=len, reverse=True):
            batch = batches[-1] if batches else []
            fits = batch and (len(batch) + 1) * len(batch[0]) <= self._max_prefill_tokens
            if fits and len(prompt) >= (1 - LENGTH_TOLERANCE) * len(batch[0]):
                batch.append(prompt)
            else:
                batches.append([prompt])
        return batches

    def _prefill_prompts(self, prompts: list[Prompt], by_prompt: dict[Prompt, list[Sample]], version: str) -> None:
        longest = len(prompts[0])
        scratch = KvCache(self._model.architecture, self._model.weights.dtype)
        arena, _ = scratch.append([by_prompt[prompt][0] for prompt in prompts], longest)
        chunk = Chunk(_padded(prompts), torch.zeros(len(prompts), dtype=torch.long), arena.kv)
        hidden_PME = self._model.forward([chunk]).view(len(prompts), longest, -1)
        for row, prompt in enumerate(prompts):
            samples = by_prompt[prompt]
            self._place(samples, arena.kv[:, :, row : row + 1, :, : len(prompt)])
            self._score_prompt(samples, hidden_PME[row, : len(prompt)])
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts])
        fresh = [(row, one) for row, prompt in enumerate(prompts) for one in by_prompt[prompt] if not one.output_ids]
        self._start(fresh, hidden_PME[torch.arange(len(prompts)), ends], version)

    def _place(self, samples: list[Sample], kv_L21HPD: torch.Tensor) -> None:
        """Give each sample a row and copy the prompt's keys and values into it."""
        length = kv_L21HPD.shape[4]
        by_capacity: dict[int, list[Sample]] = defaultdict(list)
        for one in samples:
            by_capacity[capacity_for(one.num_tokens)].append(one)
            one.kv_length = length
        for capacity, group in by_capacity.items():
            arena, first = self._cache.append(group, capacity)
            arena.kv[:, :, first : first + len(group), :, :length] = kv_L21HPD

    def _score_prompt(self, samples: list[Sample], hidden_PE: torch.Tensor) -> None:
        """Log-probabilities, at temperature 1, of the prompt's tokens after the first."""
        wanting = [one for one in samples if one.score_prompt and not one.prompt_logprobs]
        if not wanting:
            return
        prompt = torch.tensor(wanting[0].prompt)
        scores: list[float] = []
        for start in range(0, len(prompt) - 1, SCORED_TOKENS_AT_A_TIME):
            next_ids = prompt[start + 1 : start + 1 + SCORED_TOKENS_AT_A_TIME]
            logits = self._model.logits(hidden_PE[start : start + len(next_ids)]).float()
            scores += logits.log_softmax(dim=-1).gather(1, next_ids[:, None])[:, 0].tolist()
        for one in wanting:
            one.prompt_logprobs = scores

    def _start(self, fresh: list[tuple[int, Sample]], hidden_PE: torch.Tensor, version: str) -> None:
        """Draw the first token of samples that have none; (row, sample) says whose hidden state is whose."""
        for _, one in fresh:
            if one.params.max_new_tokens == 0:
                one.end(FinishReason("length", length=0))
        drawing = [(row, one) for row, one in fresh if one.finish is None]
        if drawing:
            logits_PV = self._model.logits(hidden_PE)
            rows = torch.tensor([row for row, _ in drawing])
            self._draw([one for _, one in drawing], logits_PV[rows], version)

    def _replay(self, samples: list[Sample]) -> None:
        """Recompute, under the present weights, keys and values of the output tokens of samples that lost theirs."""
        replayed = {one for one in samples if len(one.output_ids) > 1}
        for arena in self._cache.arenas if replayed else []:
            for first, run in _runs(arena, replayed):
                outputs = [one.output_ids[:-1] for one in run]
                starts = torch.tensor([one.kv_length for one in run])
                kv = arena.kv[:, :, first : first + len(run)]
                self._model.forward([Chunk(_padded(outputs), starts, kv)])
                for one in run:
                    one.kv_length = one.num_tokens - 1

    def decode(self, version: str) -> list[Sample]:
        """Give every sample in the cache its next token; returns them."""
        chunks, samples = [], []
        for arena in self._cache.arenas:
            ids = torch.tensor([[one.output_ids[-1]] for one in arena.samples])
            starts = torch.tensor([one.kv_length for one in arena.samples])
            chunks.append(Chunk(ids, starts, arena.kv[:, :, : arena.num_rows]))
            samples += arena.samples
        logits_RV = self._model.logits(self._model.forward(chunks))
        for one in samples:
            one.kv_length += 1
        self._draw(samples, logits_RV, version)
        return samples

    def _draw(self, samples: list[Sample], logits_NV: torch.Tensor, version: str) -> None:
        draws = [Draw(one.params, uniform_number(one.seed, len(one.output_ids))) for one in samples]
        ids, logprobs = sample(logits_NV, draws)
        for one, token_id, logprob in zip(samples, ids, logprobs, strict=True):
            one.append(token_id, logprob, version)


def _padded(rows: list[Prompt] | list[list[int]]) -> torch.Tensor:
    """Token ids (rows, longest), padded at the end; what a padding token computes is never read."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])


def _runs(arena: Arena, members: set[Sample]) -> list[tuple[int, list[Sample]]]:
    """Neighbouring rows of the arena whose samples are in `members`, as (first row, samples)."""
    runs: list[tuple[int, list[Sample]]] = []
    for row, one in enumerate(arena.samples):
        if one not in members:
            continue
        if runs and runs[-1][0] + len(runs[-1][1]) == row:
            runs[-1][1].append(one)
        else:
            runs.append((row, [one]))
    return runs
