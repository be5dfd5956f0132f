"""Drawing tokens from logits, with the log-probability of the distribution drawn from.

Inverse transform sampling: one uniform number a row, looked up in the cumulative distribution. It needs no random
number for each vocabulary entry, and makes a draw a pure function of the logits and the row's uniform number.

Shape letters: N rows, V vocabulary, B blocks of the vocabulary, W entries of a block.
"""

from dataclasses import dataclass

import torch

from services.engine.request import SamplingParams

BLOCK_WIDTH = 256
# Rows handled at a time: their logits in fp32 then stay in the processor's cache between the passes over them.
ROWS_AT_A_TIME = 8
GREEDY_TEMPERATURE = 1e-6
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Draw:
    """One row's wish: its sampling parameters and its uniform number in [0, 1)."""

    params: SamplingParams
    uniform: float


def mix(number: int, index: int) -> int:
    """64 bits that look random, a pure function of the two: entry `index` of the SplitMix64 sequence from `number`."""
    z = (number + (index + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def uniform_number(seed: int, position: int) -> float:
    """A uniform number in [0, 1) for the token at `position` of the sample with `seed`."""
    return float(mix(seed, position) >> 11) / float(1 << 53)


def sample(logits_NV: torch.Tensor, draws: list[Draw]) -> tuple[list[int], list[float]]:
    """Draw a token for each row.

    Returns token ids and log-probabilities under softmax(logits / temperature), in fp32. Top-k, top-p and min-p
    restrict what may be drawn and, as in SGLang, do not enter the log-probability.
    """
    ids: list[int] = []
    logprobs: list[float] = []
    for start in range(0, len(draws), ROWS_AT_A_TIME):
        some = draws[start : start + ROWS_AT_A_TIME]
        some_ids, some_logprobs = _sample_rows(logits_NV[start : start + len(some)], some)
        ids += some_ids
        logprobs += some_logprobs
    return ids, logprobs


def _sample_rows(logits_NV: torch.Tensor, draws: list[Draw]) -> tuple[list[int], list[float]]:
    scaled_NV = _scale(logits_NV, draws)
    top_N1 = scaled_NV.amax(dim=-1, keepdim=True)
    mass_NV = (scaled_NV - top_N1).exp_()
    ids_N = _invert(mass_NV, torch.tensor([draw.uniform for draw in draws], dtype=torch.float64))
    for row, draw in enumerate(draws):
        if draw.params.greedy:
            ids_N[row] = scaled_NV[row].argmax()
        elif not draw.params.whole_distribution:
            ids_N[row] = _draw_restricted(mass_NV[row], draw)
    log_total_N = mass_NV.sum(dim=-1, dtype=torch.float64).log()
    chosen_N = scaled_NV.gather(1, ids_N[:, None])[:, 0].double() - top_N1[:, 0].double()
    return ids_N.tolist(), (chosen_N - log_total_N).tolist()


def _scale(logits_NV: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    scaled_NV = logits_NV.float()
    if any(draw.params.temperature != 1.0 for draw in draws):
        return scaled_NV / torch.tensor([[draw.params.temperature] for draw in draws])
    return scaled_NV


def _invert(mass_NV: torch.Tensor, uniforms_N: torch.Tensor) -> torch.Tensor:
    """The first entry of each row at which the cumulative mass exceeds the uniform share of the total.

    Blocks are summed first and only the block that holds the answer is accumulated entry by entry, in fp64.
    """
    padding = -mass_NV.shape[1] % BLOCK_WIDTH
    padded_NV = torch.nn.functional.pad(mass_NV, (0, padding)) if padding else mass_NV
    mass_NBW = padded_NV.view(len(mass_NV), -1, BLOCK_WIDTH)
    cumulative_NB = mass_NBW.sum(dim=-1).double().cumsum(dim=-1)
    block_N, rest_N = _find(cumulative_NB, uniforms_N * cumulative_NB[:, -1])
    cumulative_NW = mass_NBW[torch.arange(len(mass_NV)), block_N].double().cumsum(dim=-1)
    entry_N, _ = _find(cumulative_NW, rest_N)
    return block_N * BLOCK_WIDTH + entry_N


def _find(cumulative_NK: torch.Tensor, targets_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First index with cumulative > target, and what of the target is left within it."""
    # Rounding may lift a target to the total, past the last entry with mass.
    limit_N = torch.nextafter(cumulative_NK[:, -1], torch.zeros((), dtype=torch.float64))
    targets_N1 = torch.minimum(targets_N, limit_N)[:, None]
    found_N1 = torch.searchsorted(cumulative_NK, targets_N1, right=True)
    before_N1 = torch.where(found_N1 > 0, cumulative_NK.gather(1, (found_N1 - 1).clamp(min=0)), 0.0)
    return found_N1[:, 0], (targets_N1 - before_N1)[:, 0]


def _draw_restricted(mass_V: torch.Tensor, draw: Draw) -> int:
    """Draw from the entries that survive top-k, then top-p (of what top-k left), then min-p."""
    sorted_V, order_V = mass_V.double().sort(descending=True, stable=True)
    if draw.params.top_k > 0:
        sorted_V[draw.params.top_k :] = 0.0
    # An entry stays while the mass before it is within top_p: the first always does.
    before_V = sorted_V.cumsum(0) - sorted_V
    sorted_V[before_V > draw.params.top_p * sorted_V.sum()] = 0.0
    sorted_V[sorted_V < draw.params.min_p * sorted_V[0]] = 0.0
    found_N, _ = _find(sorted_V.cumsum(0)[None], draw.uniform * sorted_V.sum()[None])
    return int(order_V[found_N[0]])
