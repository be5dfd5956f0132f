"""Who trains what: mini-batches in prompts, whole groups for each rank, and the learning rate."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.assignment import make_responses, share_out, split_mini_batches
from services.trainer.trainer import learning_rate
from sluice.algorithms.aggregation import Denominators
from sluice.config import OptimConfig, RunSpec
from sluice.errors import WireError
from sluice.packed import LogProbs, TokenIds
from sluice.types import BatchGroup, Rollout, RolloutSummary
from tests.trainer.script import make_batch, make_spec


@pytest.fixture
def spec() -> RunSpec:
    return make_spec(Path("no-model-is-loaded"), trainer={"total_steps": 1, "prompts_per_step": 6})


def of_length(group: BatchGroup, length: int) -> BatchGroup:
    """The group with one response of `length` tokens."""
    only: RolloutSummary = replace(group.rollouts[0], length=length)
    return replace(group, rollouts=(only,))


def test_mini_batches_are_whole_groups_in_order_with_their_own_denominators(spec: RunSpec) -> None:
    batch, rollouts = make_batch(spec)
    parts = split_mini_batches(batch, updates=3)
    assert [[g.n for g in part.groups] for part in parts] == [[0, 1], [2, 3], [4, 5]]
    for part in parts:
        assert part.totals.tokens == sum(len(r.token_ids) for g in part.groups for r in rollouts[g.n])


def test_a_short_batch_and_one_without_tokens_make_fewer_updates(spec: RunSpec) -> None:
    batch, _ = make_batch(spec)
    assert len(split_mini_batches(replace(batch, groups=batch.groups[:2]), updates=3)) == 2
    empty = tuple(of_length(g, 0) for g in batch.groups)
    assert split_mini_batches(replace(batch, groups=empty), updates=3) == []


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 5))
def test_every_group_has_one_rank_and_no_rank_is_ahead_by_more_than_one_group(lengths: list[int], ranks: int) -> None:
    batch, _ = make_batch(make_spec(Path("no-model-is-loaded")))
    groups = [replace(of_length(batch.groups[0], length), n=n) for n, length in enumerate(lengths)]
    shares = share_out(groups, ranks)
    assert sorted(g.n for share in shares for g in share) == list(range(len(lengths)))
    loads = [sum(r.length for g in share for r in g.rollouts) for share in shares]
    assert max(loads) - min(loads) <= max(lengths)


def longer(rollout: Rollout) -> Rollout:
    tokens, logprobs = TokenIds([*rollout.token_ids, 3]), LogProbs([*rollout.logprobs, -1.0])
    return replace(rollout, token_ids=tokens, logprobs=logprobs)


def test_rollouts_that_are_not_the_ones_of_the_record_are_refused(spec: RunSpec) -> None:
    batch, rollouts = make_batch(spec)
    group, found = batch.groups[1], rollouts[1]
    totals = Denominators(tokens=100, sequences=20)
    assert len(make_responses(group, found, totals, spec, ranks=1)) == len(found)
    for wrong in (
        [found[1], found[0], *found[2:]],
        [replace(found[0], attempt="another"), *found[1:]],
        [longer(found[0]), *found[1:]],
    ):
        with pytest.raises(WireError, match="group 1 names rollout 1/attempt-1/0"):
            make_responses(group, wrong, totals, spec, ranks=1)


def test_an_empty_response_counts_in_the_advantages_and_trains_nothing(spec: RunSpec) -> None:
    batch, rollouts = make_batch(spec)
    responses = make_responses(batch.groups[0], rollouts[0], Denominators(9, 3), spec, ranks=2)
    # outcomes 1, 0 (empty), 0, 0: mean 1/4, sample deviation 1/2
    assert [round(r.advantage, 4) for r in responses] == [1.5, -0.5, -0.5]
    assert [r.weight for r in responses] == [2 / 9] * 3  # ZeRO averages over the two ranks


def test_the_learning_rate_warms_up_in_training_steps_and_is_constant_then() -> None:
    optim = OptimConfig(lr=1e-5, lr_warmup_steps=4)
    rates = [learning_rate(optim, k) for k in range(6)]
    assert rates == pytest.approx([0.25e-5, 0.5e-5, 0.75e-5, 1e-5, 1e-5, 1e-5])
    assert learning_rate(OptimConfig(lr=1e-5), 0) == 1e-5
