"""Which responses have a loss; the punishment has its tests with the reward service."""

from sluice.algorithms.shaping import trained_tokens
from sluice.types import FinishReason


def test_overlong_filtering_takes_the_loss_of_truncated_responses_alone() -> None:
    assert trained_tokens(7, FinishReason.LENGTH, overlong_filtering=True) == 0
    assert trained_tokens(7, FinishReason.STOP, overlong_filtering=True) == 7
    assert trained_tokens(7, FinishReason.LENGTH, overlong_filtering=False) == 7
