"""The four aggregations on a mini-batch of responses of 1, 3 and 0 tokens, worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.algorithms.aggregation import Denominators, Mode, count_denominators, token_weight

MODES: tuple[Mode, ...] = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LOSSES = [[2.0], [1.0, 2.0, 3.0], []]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (2 + 1 + 2 + 3) / 4),
        ("seq-mean-token-sum", (2 + 6) / 2),
        ("seq-mean-token-mean", (2 + 2) / 2),
        ("seq-mean-token-sum-norm", (2 + 6) / 2 / 8),
    ],
)
def test_each_aggregation_gives_the_hand_worked_loss(mode: Mode, expected: float) -> None:
    totals = count_denominators([len(response) for response in LOSSES])
    loss = sum(
        token_weight(mode, len(response), totals, max_response_length=8) * token
        for response in LOSSES
        for token in response
    )
    assert loss == pytest.approx(expected)


def test_empty_responses_are_in_no_denominator() -> None:
    assert count_denominators([0, 5, 0, 2]) == Denominators(tokens=7, sequences=2)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=20), st.data())
def test_the_loss_of_a_mini_batch_is_the_sum_of_the_losses_of_any_split(
    lengths: list[int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(lengths)))
    totals = count_denominators(lengths)
    for mode in MODES:
        parts = [
            sum(token_weight(mode, n, totals, 50) * n for n in part) for part in (lengths[:cut], lengths[cut:], lengths)
        ]
        assert parts[0] + parts[1] == pytest.approx(parts[2])
        if mode in ("token-mean", "seq-mean-token-mean"):
            assert parts[2] == pytest.approx(1.0)
