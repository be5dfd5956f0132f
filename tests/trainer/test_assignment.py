"""Who trains what: mini-batches in prompts, whole groups for each rank, and the learning rate that goes with it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.assignment import make_responses, share_out, split_mini_batches
from services.trainer.progress import LearningRate, Progress
from sluice.config import RunSpec
from sluice.errors import WireError
from sluice.packed import LogProbs, TokenIds
from sluice.types import BatchGroup, FinishReason, Rollout, RolloutSummary
from tests.trainer.script import make_batch, make_spec

NO_MODEL = Path("no-model-is-loaded")


@pytest.fixture
def spec() -> RunSpec:
    return make_spec(NO_MODEL, trainer={"total_steps": 1, "prompts_per_step": 6, "updates_per_step": 3})


def of_length(group: BatchGroup, length: int) -> BatchGroup:
    """The group with one response of `length` tokens."""
    only: RolloutSummary = replace(group.rollouts[0], length=length)
    return replace(group, rollouts=(only,))


def test_mini_batches_are_whole_groups_in_order(spec: RunSpec) -> None:
    batch, _ = make_batch(spec)
    assert [[g.n for g in part] for part in split_mini_batches(batch, spec)] == [[0, 1], [2, 3], [4, 5]]


def test_a_short_batch_makes_fewer_updates_of_the_same_size_and_one_without_tokens_makes_none(spec: RunSpec) -> None:
    batch, _ = make_batch(spec)
    short = split_mini_batches(replace(batch, groups=batch.groups[:3]), spec)
    assert [[g.n for g in part] for part in short] == [[0, 1], [2]]
    empty = tuple(of_length(g, 0) for g in batch.groups)
    assert split_mini_batches(replace(batch, groups=empty), spec) == []


def test_a_mini_batch_of_truncated_responses_alone_is_left_out_under_overlong_filtering(spec: RunSpec) -> None:
    batch, _ = make_batch(spec)
    cut = [truncated(g) if g.n in (2, 3) else g for g in batch.groups]
    filtering = make_spec(NO_MODEL, trainer=spec.trainer.model_dump(), algorithm={"overlong_filtering": True})
    assert [[g.n for g in part] for part in split_mini_batches(replace(batch, groups=tuple(cut)), filtering)] == [
        [0, 1],
        [4, 5],
    ]


def truncated(group: BatchGroup) -> BatchGroup:
    rollouts = tuple(replace(r, finish_reason=FinishReason.LENGTH) for r in group.rollouts)
    return replace(group, rollouts=rollouts)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 5))
def test_every_group_has_one_rank_and_no_rank_is_ahead_by_more_than_one_group(lengths: list[int], ranks: int) -> None:
    batch, _ = make_batch(make_spec(NO_MODEL))
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
    assert len(make_responses(group, found, spec)) == len(found)
    for wrong in (
        [found[1], found[0], *found[2:]],
        [replace(found[0], attempt="another"), *found[1:]],
        [longer(found[0]), *found[1:]],
    ):
        with pytest.raises(WireError, match="group 1 names rollout 1/attempt-1/0"):
            make_responses(group, wrong, spec)


def test_an_empty_response_counts_in_the_advantages_and_trains_nothing(spec: RunSpec) -> None:
    batch, rollouts = make_batch(spec)
    responses = make_responses(batch.groups[0], rollouts[0], spec)
    # outcomes 1, 0 (empty), 0, 0: mean 1/4, sample deviation 1/2
    assert [round(r.advantage, 4) for r in responses] == [1.5, -0.5, -0.5]


def test_a_filtered_response_counts_in_the_advantages_and_trains_nothing() -> None:
    spec = make_spec(NO_MODEL, algorithm={"overlong_filtering": True})
    batch, rollouts = make_batch(spec)
    group = batch.groups[1]
    cut = replace(group.rollouts[1], finish_reason=FinishReason.LENGTH)  # the one with outcome 1
    group = replace(group, rollouts=(group.rollouts[0], cut, *group.rollouts[2:]))
    responses = make_responses(group, rollouts[1], spec)
    assert [round(r.advantage, 4) for r in responses] == [-0.5, -0.5, -0.5]
    assert [list(r.tokens) for r in responses] == [list(rollouts[1][i].token_ids) for i in (0, 2, 3)]


def rates(optim: dict[str, object], begins: list[Progress], update: int = 0) -> list[float]:
    spec = make_spec(
        NO_MODEL,
        optim=optim,
        trainer={"total_steps": 10, "prompts_per_step": 4, "updates_per_step": 2, "epochs_per_step": 2},
    )
    return [LearningRate(spec).of(begin, update) for begin in begins]


def test_the_learning_rate_counts_training_steps_that_made_an_update_unless_told_otherwise() -> None:
    begins = [Progress(0, 0).after(4), Progress(0, 0).after(0), Progress(4, 1).after(3)]
    assert begins == [Progress(4, 1), Progress(0, 0), Progress(7, 2)]
    assert rates({"lr": 1e-5, "lr_warmup_steps": 4}, begins, update=3) == pytest.approx([0.5e-5, 0.25e-5, 0.75e-5])


def test_in_units_of_updates_every_update_has_a_rate_of_its_own() -> None:
    optim = {"lr": 1e-5, "lr_warmup_steps": 10, "lr_unit": "update", "lr_scheduler_type": "linear"}
    assert rates(optim, [Progress(4, 1)], update=3) == pytest.approx([0.8e-5])
    # 10 steps of 2 mini-batches and 2 epochs are 40 updates: halfway down at update 25
    assert rates(optim, [Progress(24, 6)], update=1) == pytest.approx([0.5e-5])
