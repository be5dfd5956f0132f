"""`exact`: the whole response is the answer."""

from __future__ import annotations

from services.reward.verifiers.outcome import Outcome
from sluice.types import ScoreItem

END_TOKENS = (
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
)


def verify(item: ScoreItem) -> Outcome:
    """1 when the response equals the ground truth, else 0; case counts.

    White space around both, and end tokens at the end of the response, do not count.
    """
    answer = strip_end(item.response)
    correct = float(answer == item.ground_truth.strip())
    return Outcome(acc=correct, score=correct, extracted=answer)


def strip_end(text: str) -> str:
    """`text` without surrounding white space and without the end tokens, in any number, that close it."""
    text = text.strip()
    while True:
        token = next((token for token in END_TOKENS if text.endswith(token)), None)
        if token is None:
            return text
        text = text.removesuffix(token).rstrip()
