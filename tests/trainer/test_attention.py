"""Rows are attended to as their forests say, block by block, in memory that grows with their length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.trainer.attention import rows as row_attention
from services.trainer.attention.blocks import Unit, units_of
from services.trainer.attention.function import Rows, arguments, check_used
from services.trainer.attention.rows import RowBlocks, added_mask, attend_causally, causal_slab
from services.trainer.forest import Response, grow_forest
from services.trainer.packing import MicroBatch, PackingLimits, masked_micro_batch, micro_batch, pack
from services.trainer.policy import MASK_LENGTH, Policy, load_policy, packing_limits
from services.trainer.ranks import Ranks
from sluice.errors import ConfigError
from tests.trainer.flash import attentions, flash_attention
from tests.trainer.script import make_spec

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
rows = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8)


def response(prompt: tuple[int, ...], answer: tuple[int, ...]) -> Response:
    return Response(prompt, answer, tuple(-0.5 for _ in answer), advantage=1.0, group=0)


def written_out(units: tuple[Unit, ...]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[L, L] what the units say."""
    size = sum(unit.length for unit in units)
    mask = np.zeros((size, size), np.bool_)
    root = 0
    for unit in units:
        start = root
        for block in unit.blocks:
            nodes = np.arange(start, start + block.length)
            keys = np.concatenate([root + block.ancestors, nodes])
            seen = block.mask
            if seen is None:
                seen = np.hstack([np.ones((len(nodes), len(block.ancestors))), np.tri(len(nodes))]).astype(np.bool_)
            mask[np.ix_(nodes, keys)] = seen
            start += block.length
        root += unit.length
    return mask


@settings(max_examples=60, deadline=None)
@given(rows, st.booleans(), st.integers(1, 40))
def test_blocks_say_what_the_mask_of_the_row_says_under_masks_of_bounded_length(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], share: bool, mask_length: int
) -> None:
    forest = grow_forest([response(*pair) for pair in pairs], share)
    units = units_of(forest, mask_length)
    assert np.array_equal(written_out(units), forest.visible(len(forest)))
    masks = [block.mask for unit in units for block in unit.blocks if block.mask is not None]
    assert all(mask.shape[1] <= mask_length for mask in masks)


@settings(max_examples=20, deadline=None)
@given(st.lists(rows, min_size=1, max_size=3), st.integers(1, 12), st.integers(0, 99))
def test_attention_and_its_gradients_are_those_under_the_mask_of_the_row(
    pairs: list[list[tuple[tuple[int, ...], tuple[int, ...]]]], mask_length: int, seed: int
) -> None:
    packed = [[response(*pair) for pair in row] for row in pairs]
    whole, parts = (
        micro_batch(packed, PackingLimits(4096, True, 64, mask_length=limit)) for limit in (None, mask_length)
    )
    assert whole.visible is not None
    generator = torch.Generator().manual_seed(seed)
    shape = (len(packed), 2, whole.input_ids.shape[1], 4)
    states = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = added_mask(whole.visible, torch.float64).unsqueeze(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_attention, "CHUNK", 2)
        blocks = parts if parts.units else micro_batch(packed, PackingLimits(4096, True, 64, mask_length=0))
        found = RowBlocks(blocks, torch.float64).attend((states[0], states[1], states[2]), 0.5)
    expected = scaled_dot_product_attention(states[0], states[1], states[2], attn_mask=mask, scale=0.5)
    real = torch.arange(shape[2]) < torch.tensor([[len(grow_forest(row))] for row in packed])
    found, expected = (x.transpose(1, 2)[real] for x in (found, expected))
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((x * weights).sum(), states) for x in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_a_gpu_is_asked_for_the_same_without_a_mask() -> None:
    query, key, value = (torch.randn(1, 2, n, 8, dtype=torch.float64) for n in (5, 9, 9))
    slab = causal_slab(2, 9, torch.float64, query.device)
    torch.testing.assert_close(
        attend_causally((query, key, value), None, None), attend_causally((query, key, value), slab, None)
    )


class Allocations(TorchDispatchMode):
    """Counts the elements of all tensors that are made and are no view of another one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.elements = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.elements += tensor.numel()
                self.largest = max(self.largest, tensor.numel())
        return made


@pytest.fixture(scope="module")
def policy(tiny_model: Path, one_rank: Ranks) -> Policy:
    return load_policy(make_spec(tiny_model, trainer={"zero_stage": 1, "total_steps": 1}))


def long_row(length: int, responses: int) -> MicroBatch:
    """One row of about that many nodes: a prompt of a tenth, and responses that share it."""
    prompt = tuple(i % 7 for i in range(length // 10))
    each = (length - len(prompt)) // responses
    answers = torch.randint(18, (responses, each), generator=torch.Generator().manual_seed(0))
    group = [response(prompt, tuple(answer)) for answer in answers.tolist()]
    return micro_batch([group], PackingLimits(length, True, 64, mask_length=128))


@pytest.mark.parametrize("responses", [1, 8, 60])
def test_twice_the_row_takes_twice_the_memory_and_no_more(policy: Policy, responses: int) -> None:
    """All that backward needs is made in the forward pass; what backward makes is not larger than the largest of it."""
    found = []
    for length in (1500, 3000):
        batch = long_row(length, responses)
        assert batch.visible is None
        with Allocations() as forward:
            logp, _ = policy(batch)
        with Allocations() as backward:
            logp.sum().backward()
        found.append((forward.elements, max(forward.largest, backward.largest)))
    (less, _), (more, largest) = found
    assert more < 2.1 * less
    assert largest < 3000 * 512


def test_the_head_is_asked_about_nodes_that_predict_response_tokens_and_no_others(policy: Policy) -> None:
    group = [response((7,) * 40, (i, 1, 2)) for i in range(3)]
    (batch,) = pack([group], PackingLimits(512, True, 64))
    asked: list[int] = []
    handle = policy.head.register_forward_pre_hook(lambda _, given: asked.append(len(given[0])))
    policy(batch)
    handle.remove()
    assert batch.size == 40 + 3 * 2
    assert asked == [1 + 3 * 2]  # the end of the prompt predicts three first tokens


def test_flash_attention_is_told_where_sequences_begin_and_never_sees_a_mask(policy: Policy) -> None:
    rows = [[response((7, n), (i, 1, 2)) for n in range(2) for i in range(3)]]
    plain, flash = (micro_batch(rows, PackingLimits(64, False, 64, single_row=single)) for single in (False, True))
    with flash_attention(policy.body) as kernel, torch.no_grad():
        found, _ = policy(flash)
        nothing, _ = policy(masked_micro_batch(single_row=True))
    assert len(kernel.calls) == 2 * attentions(policy.body)
    assert kernel.calls[0]["borders"].tolist() == list(range(0, 25, 4))
    assert kernel.calls[0]["longest"] == 4 and kernel.calls[0]["borders"].dtype == torch.int32
    torch.testing.assert_close(found, policy(plain)[0])
    assert torch.isfinite(nothing).all()


@pytest.mark.parametrize(
    ("attention", "sharing", "length", "form"),
    [
        ("sdpa", True, MASK_LENGTH, "visible"),
        ("sdpa", True, MASK_LENGTH + 1, "units"),
        ("eager", True, MASK_LENGTH + 1, "visible"),
        ("flash_attention_2", False, 5, "borders"),
    ],
)
def test_a_run_file_chooses_how_rows_are_attended_to(
    policy: Policy, tiny_model: Path, attention: str, sharing: bool, length: int, form: str
) -> None:
    trainer = {"prefix_sharing": sharing, "max_tokens_per_micro_batch": 4096, "total_steps": 1}
    limits = packing_limits(policy, make_spec(tiny_model, model={"attention": attention}, trainer=trainer))
    batch = micro_batch([[response((7,), (1,) * length)]], limits)
    assert [name for name in ("visible", "units", "borders") if getattr(batch, name) is not None] == [form]


def test_a_model_that_does_not_hand_rows_on_is_refused_instead_of_trained_without_borders() -> None:
    given = arguments(long_row(500, 1), torch.float32, None)
    assert isinstance(given["rows"], Rows)
    with pytest.raises(ConfigError, match=r"set model\.attention = 'eager'"):
        check_used(given)
