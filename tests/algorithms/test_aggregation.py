"""The aggregations on a mini-batch of two groups, with responses of 1, 3, 0 and 2 tokens, worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.algorithms.aggregation import Denominators, Mode, count_denominators, token_weight

MODES: tuple[Mode, ...] = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "group-mean-token-mean",
)
LOSSES = [(7, [2.0]), (7, [1.0, 2.0, 3.0]), (7, []), (9, [4.0, 6.0])]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (2 + 1 + 2 + 3 + 4 + 6) / 6),
        ("token-sum", 2 + 1 + 2 + 3 + 4 + 6),
        ("seq-mean-token-sum", (2 + 6 + 10) / 3),
        ("seq-mean-token-mean", (2 + 2 + 5) / 3),
        ("seq-mean-token-sum-norm", (2 + 6 + 10) / 3 / 8),
        ("group-mean-token-mean", (8 / 4 + 10 / 2) / 2),
    ],
)
def test_each_aggregation_gives_the_hand_worked_loss(mode: Mode, expected: float) -> None:
    totals = count_denominators((n, len(response)) for n, response in LOSSES)
    loss = sum(
        token_weight(mode, n, len(response), totals, scale_factor=8) * token
        for n, response in LOSSES
        for token in response
    )
    assert loss == pytest.approx(expected)


def test_responses_and_groups_without_a_trained_token_are_in_no_denominator() -> None:
    counted = count_denominators([(1, 0), (2, 5), (2, 0), (3, 2), (2, 1)])
    assert counted == Denominators(tokens=8, sequences=3, groups={2: 6, 3: 2})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), min_size=2, max_size=20), st.data())
def test_the_loss_of_a_mini_batch_is_the_sum_of_the_losses_of_any_split(
    responses: list[tuple[int, int]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(responses)))
    totals = count_denominators(responses)
    for mode in MODES:
        parts = [
            sum(token_weight(mode, n, tokens, totals, 50) * tokens for n, tokens in part)
            for part in (responses[:cut], responses[cut:], responses)
        ]
        assert parts[0] + parts[1] == pytest.approx(parts[2])
        if mode in ("token-mean", "seq-mean-token-mean", "group-mean-token-mean"):
            assert parts[2] == pytest.approx(1.0)
