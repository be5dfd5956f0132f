"""Rows that share beginnings: every response keeps exactly its own ancestors, positions and predictors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.forest import Forest, Response, grow_forest
from services.trainer.packing import MicroBatch, PackingLimits, masked_micro_batch, pack

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


def response(prompt: tuple[int, ...], answer: tuple[int, ...]) -> Response:
    return Response(prompt, answer, tuple(-0.5 for _ in answer), advantage=1.0, group=0)


def what_predicts(forest: Forest, node: int) -> list[tuple[int, int]]:
    """(position, token) of all that a node attends to, in order of position."""
    seen = np.flatnonzero(forest.visible(len(forest))[node])
    return sorted((int(forest.positions[i]), int(forest.token_ids[i])) for i in seen)


def test_a_group_shares_its_prompt_and_the_beginnings_that_its_responses_have_in_common() -> None:
    prompt = (7, 8)
    forest = grow_forest([response(prompt, answer) for answer in [(1, 2, 3), (1, 2, 9), (1, 4), (5,)]])
    # prompt 7 8, then 1, then 2 under it; 3, 9, 4 and 5 end their responses and predict nothing
    assert forest.token_ids.tolist() == [7, 8, 1, 2]
    assert forest.positions.tolist() == [0, 1, 2, 3]
    assert [p.tolist() for p in forest.predictors] == [[1, 2, 3], [1, 2, 3], [1, 2], [1]]


def test_branches_see_their_ancestors_and_not_one_another() -> None:
    forest = grow_forest([response((7,), (1, 2, 0)), response((7,), (3, 4, 0))])
    assert forest.token_ids.tolist() == [7, 1, 2, 3, 4]
    expected = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1],
    ]
    assert forest.visible(5).astype(int).tolist() == expected


def test_padding_attends_to_itself_so_that_no_row_of_the_softmax_is_empty() -> None:
    mask = grow_forest([response((7,), (1, 2))]).visible(4)
    assert mask[2:].astype(int).tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8), st.booleans())
def test_each_token_is_predicted_from_exactly_what_came_before_it(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], share: bool
) -> None:
    responses = [response(*pair) for pair in pairs]
    forest = grow_forest(responses, share)
    for r, predictors in zip(responses, forest.predictors, strict=True):
        assert len(predictors) == len(r.tokens)
        for t, node in enumerate(predictors):
            before = (*r.prompt, *r.tokens[:t])
            assert what_predicts(forest, int(node)) == list(enumerate(before))


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8))
def test_a_shared_forest_has_one_node_for_each_distinct_beginning(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    responses = [response(*pair) for pair in pairs]
    distinct = {tuple(r.inputs[:end]) for r in responses for end in range(1, len(r.inputs) + 1)}
    assert len(grow_forest(responses)) == len(distinct)


def trained(batches: list[MicroBatch]) -> list[tuple[int, float]]:
    return sorted((int(t), round(float(a), 6)) for b in batches for t, a in zip(b.targets, b.advantages, strict=True))


@given(
    st.lists(st.tuples(tokens, st.lists(tokens, min_size=1, max_size=4)), min_size=1, max_size=5),
    st.integers(12, 64),
    st.booleans(),
)
def test_packing_holds_every_token_once_within_the_budget(
    groups: list[tuple[tuple[int, ...], list[tuple[int, ...]]]], budget: int, share: bool
) -> None:
    responses = [[response(prompt, answer) for answer in answers] for prompt, answers in groups]
    batches = pack(responses, PackingLimits(budget, share, attention_unit=64))
    assert all(b.size <= budget for b in batches)
    assert trained(batches) == sorted((t, 1.0) for group in responses for r in group for t in r.tokens)
    assert all((b.slots.diff() >= 0).all() for b in batches)


def test_a_group_larger_than_the_budget_is_split_and_repeats_its_prompt() -> None:
    group = [response((7, 7, 7, 7), (i, i, i)) for i in range(6)]
    batches = pack([group], PackingLimits(budget=12, share=True, attention_unit=64))
    assert len(batches) > 1
    assert all(b.size <= 12 for b in batches)


def test_a_masked_micro_batch_is_the_smallest_pass_there_is() -> None:
    batch = masked_micro_batch()
    assert batch.masked
    assert batch.size == 1


@pytest.mark.parametrize("share", [True, False])
def test_rows_of_a_group_with_a_long_prompt_cost_less_when_shared(share: bool) -> None:
    group = [response(tuple(range(10)), (i, i)) for i in range(8)]
    size = sum(b.size for b in pack([group], PackingLimits(4096, share, attention_unit=64)))
    assert size == (10 + 8 if share else 8 * 11)
