"""The batch that all sides of the training benchmark train: its lengths and rewards."""

from __future__ import annotations

import math
import statistics

import pytest

from bench.mixed_lengths import Mix, SampledGroup, cut, response_tokens

MIX = Mix(groups=8, group_size=16, shortest=16, longest=512)


def test_lengths_are_log_normal_within_the_bounds_and_the_same_each_time() -> None:
    lengths = MIX.lengths()
    assert lengths == MIX.lengths() != sorted(lengths)
    assert len(lengths) == 128
    assert (min(lengths), max(lengths)) == (16, 512)
    logs = [math.log(length) for length in lengths]
    assert statistics.mean(logs) == pytest.approx(math.log(16 * 512) / 2, abs=0.02)
    spread = math.log(512 / 16) / 4
    within = sum(abs(log - statistics.median(logs)) < spread for log in logs) / len(logs)
    assert 0.66 < within < 0.70, "as many within one standard deviation as a normal distribution has"


def test_half_of_a_groups_responses_are_right() -> None:
    assert sorted(MIX.rewards()) == [0.0] * 8 + [1.0] * 8


def test_a_cut_batch_has_the_same_beginnings_and_nothing_longer() -> None:
    logprobs = [[-0.1, -0.2, -0.3], [-0.4]]
    group = SampledGroup(prompt=[1], tokens=[[1, 2, 3], [4]], logprobs=logprobs, rewards=[1.0, 0.0])
    (found,) = cut([group], 2)
    assert found["tokens"] == [[1, 2], [4]]
    assert found["logprobs"] == [[-0.1, -0.2], [-0.4]]
    assert (response_tokens([found]), found["prompt"]) == (3, [1])
