"""Ranks that share micro-batches make the updates that one rank makes, and go through a run together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.config import TrainerSettings
from services.trainer.ranks import Ranks
from services.trainer.replay.training import regrouped
from services.trainer.sequence import key_ranges, query_ranges
from sluice.transport.nats import Bus
from sluice.types import RunState
from tests.trainer import several_ranks, slicing
from tests.trainer.comparing import both, compare
from tests.trainer.layouts import Layout
from tests.trainer.real_shapes import real_spec
from tests.trainer.reference import PlainTrainer, distance
from tests.trainer.running import events, tensors, versions
from tests.trainer.script import Script, make_batch, make_spec
from tests.trainer.updating import LR, GradientProbe, train_batch

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")
SAME = 1e-5
"""Relative difference of gradients, in float32."""


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_every_head_is_on_one_rank_and_its_key_head_too(key_heads: int, repeats: int, data: st.DataObject) -> None:
    heads = key_heads * repeats
    ranks = data.draw(st.integers(1, heads))
    queries = query_ranges(heads, ranks)
    assert [head for a, b in queries for head in range(a, b)] == list(range(heads))
    assert {b - a for a, b in queries} <= {heads // ranks, -(-heads // ranks)}
    for (a, b), (first, last) in zip(queries, key_ranges(queries, repeats), strict=True):
        assert {head // repeats for head in range(a, b)} == set(range(first, last))


def test_a_replay_by_other_ranks_keeps_the_size_of_micro_batches(tiny_model: Path) -> None:
    spec = make_spec(tiny_model, trainer={"total_steps": 1, "max_tokens_per_micro_batch": 8, "sequence_parallel": 6})
    for ranks, shared in ((1, 1), (4, 2), (6, 6)):
        found = regrouped(spec, ranks)
        assert (found.trainer.sequence_parallel, found.micro_batch_tokens) == (shared, 48)
    assert regrouped(spec, 6) == spec


def check_updates(found: dict[str, Any], tiny_model: Path, few_words: Path) -> None:
    for algorithm, layout, updates, gradients, loss, (sums, gap) in found["exact"]:
        engine, outcome, expected = both(tiny_model, algorithm, Layout(*layout), updates)
        engine.gradients = gradients
        compare(engine, replace(outcome, sums=replace(outcome.sums, loss=loss)), expected)
        assert sums == pytest.approx(outcome.sums.fields(updates), rel=1e-9, abs=1e-12)
        assert gap == pytest.approx(outcome.gap.fields(), rel=1e-9, abs=1e-12)
    spec = real_spec(few_words)
    plain = PlainTrainer(spec, lambda causal: causal, lambda causal: None)
    expected_gradient = plain.step(*make_batch(spec), 0.0)[0].gradient
    assert len(found["wide"]["gradients"]) == len(slicing.WIDE_LAYOUTS) + 1
    assert max(distance(gradient, expected_gradient) for gradient in found["wide"]["gradients"]) < SAME
    torch.testing.assert_close(*found["wide"]["by flash"])
    assert {tuple(heads) for heads in found["wide"]["heads"][0] + found["wide"]["heads"][1]} == {(5, 5), (4, 4)}


def test_two_replicas_of_two_ranks_make_the_updates_of_the_reference_in_as_many_collective_calls(
    tiny_model: Path, few_words: Path, four_ranks: dict[str, Any]
) -> None:
    found = four_ranks["sliced"]
    check_updates(found, tiny_model, few_words)
    first, second = found["wide"]["micro-batches"]
    assert first != second
    calls = found["wide"]["collectives"]
    assert calls[0] and calls == [calls[0]] * 4


@pytest.mark.usefixtures("one_rank")
async def test_two_ranks_serve_a_run_by_sharing_each_micro_batch(  # fixtures
    bus: Bus, tiny_model: Path, few_words: Path, one_rank: Ranks, settings: TrainerSettings, tmp_path: Path
) -> None:
    """One start of two ranks for all of it: updates, a checkpoint of ranks that share nothing, and a whole run."""
    trainer = {"total_steps": 2, "prompts_per_step": 2, "max_tokens_per_micro_batch": 16, "sequence_parallel": 2}
    script = Script(bus, make_spec(tiny_model, trainer=trainer, optim={"lr": LR, "eps": 1e-2}))
    await script.create()
    batch = await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)

    variables = {"SLUICE_NATS_URL": settings.nats_url, "SLUICE_DATA_DIR": str(settings.data_dir)}
    variables[slicing.WIDE_MODEL] = str(few_words)
    found = await asyncio.to_thread(several_ranks.run, "two", 2, tiny_model, tmp_path, **variables)
    check_updates(found, tiny_model, few_words)
    undivided, resumed = found["resumed"]
    assert 0.0 < distance(resumed, undivided) < SAME

    assert found["served"] == 0
    alone = script.spec.model_copy(update={"trainer": script.spec.trainer.model_copy(update={"sequence_parallel": 1})})
    engine = GradientProbe(alone)
    outcome = train_batch(engine, alone, one_rank, batch, script.rollouts)
    published = await tensors((await versions(bus))["v1.1"], tmp_path)
    weights = {name: tensor for block in engine.parameters() for name, tensor in block}
    shared = {name: torch.frombuffer(bytearray(raw), dtype=torch.float32) for name, raw in published.items()}
    assert distance(shared, {name: tensor.flatten() for name, tensor in weights.items()}) < SAME
    (step,) = await events(bus, "step")
    assert (step["trained_tokens"], step["trained_sequences"]) == (outcome.trained_tokens, outcome.trained_sequences)
    assert step["loss"] == pytest.approx(outcome.sums.loss, rel=1e-4)
