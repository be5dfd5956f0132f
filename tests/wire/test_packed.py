"""Packed numbers: the numbers that were put in, to the last bit, whoever reads them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sluice.audit.rollouts import RolloutCheck, Scored
from sluice.packed import LogProbs, TokenIds
from sluice.types import Rollout
from sluice.wire.codec import decode_rollout, encode_rollout
from sluice.wire.payload import content_hash, has_content_hash
from sluice.wire.v1 import rollouts_pb2
from tests.wire import nouns

ids = st.lists(nouns.uint32, max_size=20)
floats = st.lists(st.floats(width=32), max_size=20)


@given(ids, st.slices(20))
def test_token_ids_read_like_the_list_they_were_made_of(numbers: list[int], part: slice) -> None:
    packed = TokenIds(numbers)
    assert (list(packed), len(packed), bool(packed)) == (numbers, len(numbers), bool(numbers))
    assert list(packed[part]) == numbers[part]
    assert [packed[i] for i in range(len(numbers))] == numbers
    assert packed == TokenIds.of_block(struct.pack(f"<{len(numbers)}I", *numbers))
    assert hash(packed) == hash(TokenIds(tuple(numbers)))


@given(floats)
def test_log_probs_are_equal_when_every_bit_is_nan_included(numbers: list[float]) -> None:
    packed = LogProbs(numbers)
    assert packed.block == struct.pack(f"<{len(numbers)}f", *numbers)
    assert packed == LogProbs(iter(packed))
    assert (LogProbs([0.0]) == LogProbs([-0.0])) is False


@given(ids, floats)
def test_numpy_reads_the_same_memory_and_cannot_change_it(tokens: list[int], logprobs: list[float]) -> None:
    packed = TokenIds(tokens)
    array = np.asarray(packed)
    assert array.dtype == np.dtype(np.uint32)
    assert array.tolist() == tokens
    assert np.asarray(LogProbs(logprobs)).tobytes() == LogProbs(logprobs).block
    assert not array.flags.writeable
    if tokens:
        assert np.shares_memory(array, np.frombuffer(packed.block, np.uint32))


def test_ids_and_log_probs_of_the_same_bytes_are_not_equal() -> None:
    assert TokenIds([0]).block == LogProbs([0.0]).block
    assert TokenIds([0]) != LogProbs([0.0])
    assert TokenIds([7]) != (7,)


@pytest.mark.parametrize("number", [-1, 2**32, 1.5, "7", None])
def test_what_is_no_token_id_is_refused(number: int) -> None:
    with pytest.raises((TypeError, OverflowError)):
        TokenIds([number])


@given(st.lists(st.sampled_from([0, 7, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**32 - 1]), max_size=6))
def test_token_ids_come_back_from_their_halves_which_are_as_short_as_they_can_be(numbers: list[int]) -> None:
    low, high = TokenIds(numbers).halves()
    assert TokenIds.of_halves(low, high) == TokenIds(numbers)
    largest = max(numbers, default=0)
    width = 0 if largest < 2**16 else 1 if largest < 2**24 else 2
    assert (len(low), len(high)) == (2 * len(numbers), width * len(numbers))


@pytest.mark.parametrize("sizes", [(3, 0), (2, 3), (4, 1), (0, 1), (3, 3)])
def test_halves_that_do_not_belong_together_are_refused(sizes: tuple[int, int]) -> None:
    low, high = map(bytes, sizes)
    with pytest.raises(ValueError, match=f"{sizes[0]} and {sizes[1]} bytes are no halves"):
        TokenIds.of_halves(low, high)


def test_a_block_that_ends_within_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="7 bytes are no whole number of 4-byte numbers"):
        LogProbs.of_block(bytes(7))


def in_format_1(rollout: Rollout) -> bytes:
    """As releases before format 2 stored it."""
    message = rollouts_pb2.Rollout(
        format=1,
        run_id=rollout.run_id,
        n=rollout.n,
        attempt=rollout.attempt,
        i=rollout.i,
        prompt_token_ids=rollout.prompt_token_ids,
        token_ids=rollout.token_ids,
        logprobs=rollout.logprobs,
        finish_reason=rollout.finish_reason,
        spans=[
            rollouts_pb2.VersionSpan(
                version=rollouts_pb2.PolicyVersion(number=s.version.number, lineage=s.version.lineage),
                start=s.start,
                end=s.end,
            )
            for s in rollout.spans
        ],
    )
    return zstandard.compress(message.SerializeToString(), level=3)


def in_format_2(rollout: Rollout) -> bytes:
    """As releases before format 3 stored it."""
    message = rollouts_pb2.Rollout.FromString(zstandard.decompress(in_format_1(rollout)))
    message.format = 2
    for field in ("prompt_token_ids", "token_ids", "logprobs"):
        message.ClearField(field)
    message.prompt_token_planes, message.token_planes = (
        b"".join(ids.block[plane::4] for plane in range(4)) for ids in (rollout.prompt_token_ids, rollout.token_ids)
    )
    message.packed_logprobs = rollout.logprobs.block
    return zstandard.compress(message.SerializeToString(), level=-1)


def sha256(payload: bytes) -> bytes:
    """The content hash of releases before BLAKE3."""
    return hashlib.sha256(payload).digest()[:16]


def blake2b(payload: bytes) -> bytes:
    """The content hash of the releases before those."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def findings_of_the_audit(
    rollout: Rollout, payload: bytes, named: Callable[[bytes], bytes] = content_hash
) -> list[str]:
    """What the audit, with readers of its own, says about a stored rollout whose group describes it truly."""
    versions = [(s.version.number, s.version.lineage) for s in rollout.spans if s.end > s.start] or [(0, 0)]
    oldest, newest = min(versions), max(versions)
    summary = rollouts_pb2.RolloutSummary(
        sequences=[5],
        content_hash=named(payload),
        length=len(rollout.token_ids),
        finish_reason=rollout.finish_reason,
        oldest_version=rollouts_pb2.PolicyVersion(number=oldest[0], lineage=oldest[1]),
        newest_version=rollouts_pb2.PolicyVersion(number=newest[0], lineage=newest[1]),
    )
    summaries = [rollouts_pb2.RolloutSummary(sequences=[6], content_hash=b"-")] * rollout.i + [summary]
    check = RolloutCheck(rollout.run_id, [Scored("", rollout.n, rollout.attempt, summaries)], purged=2**63)
    check.take(5, payload)
    return [finding.detail for finding in check.findings if "sequence 6" not in finding.detail]


@given(nouns.rollouts(max_i=7))
def test_a_rollout_of_every_format_is_the_same_rollout_to_the_trainer_and_to_the_audit(rollout: Rollout) -> None:
    for payload in (encode_rollout(rollout), in_format_1(rollout), in_format_2(rollout)):
        assert decode_rollout(payload) == rollout
        for named in (content_hash, sha256, blake2b):
            assert findings_of_the_audit(rollout, payload, named) == []
            assert has_content_hash(payload, named(payload))


@given(nouns.rollouts(max_i=7), st.data())
def test_the_hash_of_a_rollout_is_that_of_its_stored_bytes_and_no_others(rollout: Rollout, data: st.DataObject) -> None:
    payload = encode_rollout(rollout)
    assert encode_rollout(decode_rollout(payload)) == payload
    at = data.draw(st.integers(0, len(payload) - 1))
    changed = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
    assert not any(has_content_hash(changed, named(payload)) for named in (content_hash, sha256, blake2b))
