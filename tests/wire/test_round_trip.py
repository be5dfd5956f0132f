"""Whatever goes onto the wire comes back as it was; whatever breaks the contract is refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
import zstandard
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from sluice import types
from sluice.errors import WireError
from sluice.types import (
    EvaluatedResponse,
    EvaluationGroup,
    EvaluationPrompt,
    EvaluationRecord,
    FinishReason,
    Group,
    LedgerRecord,
    PolicyVersion,
    Prompt,
    Rollout,
    TrainerRecord,
    Verdict,
    VerdictKind,
)
from sluice.wire import codec, records
from sluice.wire.codec import (
    decode_group,
    decode_prompt,
    decode_rollout,
    encode_group,
    encode_prompt,
    encode_rollout,
)
from sluice.wire.evaluation import (
    decode_evaluation,
    decode_evaluation_group,
    decode_evaluation_prompt,
    encode_evaluation,
    encode_evaluation_group,
    encode_evaluation_prompt,
)
from sluice.wire.payload import MAX_MESSAGE_BYTES, MAX_ROLLOUT_BYTES, content_hash, pack, unpack
from sluice.wire.records import decode_ledger, decode_trainer, encode_ledger, encode_trainer
from sluice.wire.v1 import evaluation_pb2, ledger_pb2, reward_pb2, rollouts_pb2
from tests.wire import nouns

DECODERS: list[Callable[[bytes], object]] = [
    decode_prompt,
    decode_rollout,
    decode_group,
    decode_ledger,
    decode_trainer,
    decode_evaluation_prompt,
    decode_evaluation_group,
    decode_evaluation,
]
NEWEST: dict[Callable[[bytes], object], int] = {decode_group: 2, decode_ledger: 3}
PLAIN = [d for d in DECODERS if d not in (decode_rollout, decode_evaluation_group)]
"""Those of messages that begin with their protobuf fields."""


@given(nouns.prompts)
def test_prompts_come_back_as_they_were(prompt: Prompt) -> None:
    assert decode_prompt(encode_prompt(prompt)) == prompt


@given(nouns.rollouts())
def test_rollouts_come_back_as_they_were(rollout: Rollout) -> None:
    assert decode_rollout(encode_rollout(rollout)) == rollout


@given(nouns.groups)
def test_groups_come_back_as_they_were(group: Group) -> None:
    assert decode_group(encode_group(group)) == group


@given(nouns.ledger_records)
def test_ledger_records_come_back_as_they_were(record: LedgerRecord) -> None:
    assert decode_ledger(encode_ledger(record)) == record


@given(nouns.trainer_records)
def test_trainer_records_come_back_as_they_were(record: TrainerRecord) -> None:
    assert decode_trainer(encode_trainer(record)) == record


@given(nouns.evaluation_prompts)
def test_evaluation_prompts_come_back_as_they_were(asked: EvaluationPrompt) -> None:
    assert decode_evaluation_prompt(encode_evaluation_prompt(asked)) == asked


@given(nouns.evaluation_groups)
def test_evaluation_groups_come_back_as_they_were(group: EvaluationGroup) -> None:
    assert decode_evaluation_group(encode_evaluation_group(group)) == group


@given(nouns.evaluation_records)
def test_evaluation_records_come_back_as_they_were(record: EvaluationRecord) -> None:
    assert decode_evaluation(encode_evaluation(record)) == record


def test_an_evaluation_group_over_the_size_of_a_message_goes_without_its_texts_and_keeps_its_verdicts() -> None:
    noise = "".join(map(chr, random.Random(0).choices(range(0x4E00, 0x9FFF), k=600_000)))
    verdict = Verdict(VerdictKind.SCORED, 1.0, 1.0, "34", "math", 0.1)
    response = EvaluatedResponse(noise, 9, FinishReason.LENGTH, verdict)
    group = EvaluationGroup("run-1", PolicyVersion(5, 1), 3, (response,), "w", "e", 1.0, 1.0)
    payload = encode_evaluation_group(group)
    assert len(payload) <= MAX_MESSAGE_BYTES
    assert decode_evaluation_group(payload).responses == (replace(response, text=""),)


@given(st.sampled_from(DECODERS), st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused_but_never_crash(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except WireError as error:
        assert str(error)


@given(nouns.rollouts(), st.data())
def test_a_rollout_cut_short_is_refused(rollout: Rollout, data: st.DataObject) -> None:
    payload = encode_rollout(rollout)
    with pytest.raises(WireError):
        decode_rollout(payload[: data.draw(st.integers(0, len(payload) - 1))])


@given(nouns.groups)
def test_unknown_fields_of_a_newer_program_are_tolerated(group: Group) -> None:
    field_1999_as_string = b"\xfa\x7c\x03new"
    assert decode_group(encode_group(group) + field_1999_as_string) == group


@pytest.mark.parametrize("decode", PLAIN)
@pytest.mark.parametrize("number", [0, 4])
def test_another_format_is_refused_by_number(decode: Callable[[bytes], object], number: int) -> None:
    with pytest.raises(WireError, match=f"has format {number}; this program reads 1 to {NEWEST.get(decode, 1)}"):
        decode(b"\x08" + bytes([number]) if number else b"")


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=12), st.integers(1, 20))
def test_payloads_come_back_from_the_messages_that_they_share(payloads: list[bytes], limit: int) -> None:
    messages, slots = pack(payloads, limit)
    assert all(0 < len(message) <= limit for message in messages)
    assert b"".join(messages) == b"".join(payloads)
    found = [unpack([messages[at] for at in slot.messages], slot.offset, slot.nbytes) for slot in slots]
    assert [bytes(payload) for payload in found] == payloads
    for payload, slot in zip(payloads, slots, strict=True):
        assert len(slot.messages) == max(1, -(-len(payload) // limit))
        if len(slot.messages) > 1:  # all of several messages are its own
            assert sum(other.messages.start in slot.messages for other in slots) == 1


@given(st.lists(st.integers(1, 40), max_size=40))
def test_no_two_neighbouring_messages_would_have_fitted_into_one(sizes: list[int]) -> None:
    messages, _ = pack([bytes(size) for size in sizes], 40)
    assert all(len(one) + len(next_one) > 40 for one, next_one in pairwise(messages))


def test_a_payload_beyond_the_end_of_its_message_is_refused() -> None:
    with pytest.raises(WireError, match="bytes 3 to 7 of 6"):
        unpack([b"abcdef"], 3, 4)
    assert unpack([b"abc", b"def"], 0, 0) == b"abcdef", "as groups of older releases name it"


def packed(rollout: rollouts_pb2.Rollout) -> bytes:
    """As formats 1 and 2 are stored."""
    return zstandard.compress(rollout.SerializeToString())


def wire_rollout(**changes: Any) -> rollouts_pb2.Rollout:
    version = rollouts_pb2.PolicyVersion(number=1, lineage=1)
    span = rollouts_pb2.VersionSpan(version=version, start=0, end=2)
    whole: dict[str, Any] = {
        "format": 2,
        "token_planes": bytes([1, 2, 0, 0, 0, 0, 0, 0]),
        "packed_logprobs": struct.pack("<2f", -1.0, -2.0),
        "finish_reason": "stop",
        "spans": [span],
    }
    return rollouts_pb2.Rollout(**(whole | changes))


def spans(*borders: tuple[int, int]) -> list[rollouts_pb2.VersionSpan]:
    return [rollouts_pb2.VersionSpan(start=start, end=end) for start, end in borders]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packed_logprobs": bytes(4)}, "2 tokens but 1 log-probs"),
        ({"packed_logprobs": bytes(7)}, "7 bytes are no whole number of 4-byte numbers"),
        ({"token_planes": bytes(9)}, "9 bytes are no whole number of 4-byte numbers"),
        ({"prompt_token_planes": bytes(2)}, "2 bytes are no whole number of 4-byte numbers"),
        ({"format": 1, "token_ids": [1, 2], "logprobs": [-1.0]}, "2 tokens but 1 log-probs"),
        ({"finish_reason": "tired"}, "'tired' is not a valid FinishReason"),
        ({"spans": []}, "do not cover 2 tokens"),
        ({"spans": spans((0, 1))}, "do not cover 2 tokens"),
        ({"spans": spans((0, 1), (0, 2))}, "do not cover 2 tokens"),
        ({"spans": spans((1, 2))}, "do not cover 2 tokens"),
        ({"spans": spans((0, 3))}, "do not cover 2 tokens"),
        ({"spans": spans((0, 5), (5, 2))}, "do not cover 2 tokens"),
        ({"format": 7}, "has format 7"),
    ],
)
def test_a_rollout_of_format_1_or_2_that_breaks_the_contract_is_refused(changes: dict[str, Any], message: str) -> None:
    assert decode_rollout(packed(wire_rollout()))
    with pytest.raises(WireError, match=message):
        decode_rollout(packed(wire_rollout(**changes)))


TWO_TOKENS = (b"", b"", struct.pack("<2H", 1, 2), b"", struct.pack("<2f", -1.0, -2.0))


def laid_out(blocks: Sequence[bytes] = TWO_TOKENS, **changes: Any) -> bytes:
    """A rollout of format 3, by hand."""
    fields = {"format": 3, "sizes": map(len, blocks), "packed_logprobs": b"", "token_planes": b""} | changes
    header = wire_rollout(**fields).SerializeToString()
    return struct.pack("<I", len(header)) + header + b"".join(blocks)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (laid_out((*TWO_TOKENS[:4], bytes(4))), "2 tokens but 1 log-probs"),
        (laid_out((*TWO_TOKENS[:4], bytes(7))), "7 bytes are no whole number of 4-byte numbers"),
        (laid_out((b"", b"", bytes(5), b"", bytes(8))), "5 and 0 bytes are no halves of token ids"),
        (laid_out((bytes(2), bytes(3), *TWO_TOKENS[2:])), "2 and 3 bytes are no halves of token ids"),
        (laid_out(TWO_TOKENS[:4]), "4 blocks end at byte"),
        (laid_out() + b"x", "5 blocks end at byte"),
        (laid_out()[:-1], "5 blocks end at byte"),
        (laid_out(format=2), "format 2 is not in zstd"),
        (laid_out(spans=[]), "do not cover 2 tokens"),
        (laid_out(finish_reason="tired"), "'tired' is not a valid FinishReason"),
        (laid_out(format=4), "has format 4; this program reads 1 to 3"),
    ],
)
def test_a_rollout_that_breaks_the_contract_is_refused(payload: bytes, message: str) -> None:
    assert list(decode_rollout(laid_out()).token_ids) == [1, 2]
    with pytest.raises(WireError, match=message):
        decode_rollout(payload)


@pytest.mark.parametrize("says_its_size", [True, False])
def test_a_rollout_that_unpacks_to_more_than_the_limit_is_refused(says_its_size: bool) -> None:
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=says_its_size)
    bomb = compressor.compress(bytes(MAX_ROLLOUT_BYTES + 1))
    assert len(bomb) < 1 << 17
    with pytest.raises(WireError, match="unpacks to more than" if says_its_size else "cannot be decompressed"):
        decode_rollout(bomb)


@pytest.mark.parametrize("changes", [{"token_ids": []}, {"group_size": 0}])
def test_a_prompt_without_tokens_or_without_a_group_is_refused(changes: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"format": 1, "token_ids": [1], "group_size": 2}
    message = rollouts_pb2.Prompt(**(whole | changes))
    with pytest.raises(WireError, match="tokens and group size"):
        decode_prompt(message.SerializeToString())


@pytest.mark.parametrize(
    ("message", "decode"),
    [
        (rollouts_pb2.Group(format=1, status="great"), decode_group),
        (rollouts_pb2.Group(format=1, status="scored", rollouts=[rollouts_pb2.RolloutSummary()]), decode_group),
        (ledger_pb2.LedgerRecord(format=1, drop=ledger_pb2.Drop(groups=[1], reason="bored")), decode_ledger),
        (ledger_pb2.LedgerRecord(format=1, state_change=ledger_pb2.StateChange(state="asleep")), decode_ledger),
        (
            ledger_pb2.LedgerRecord(
                format=1, batch=ledger_pb2.Batch(dropped=[ledger_pb2.DroppedGroup(n=1, reason="bored")])
            ),
            decode_ledger,
        ),
        (ledger_pb2.LedgerRecord(format=1), decode_ledger),
        (ledger_pb2.TrainerRecord(format=1), decode_trainer),
        (evaluation_pb2.EvaluationRecord(format=1), decode_evaluation),
        (
            evaluation_pb2.EvaluationRecord(format=1, ended=evaluation_pb2.EvaluationEnded(outcome="forgotten")),
            decode_evaluation,
        ),
        (
            evaluation_pb2.EvaluationPrompt(
                format=1, prompt=rollouts_pb2.Prompt(format=1, token_ids=[1], group_size=2), seeds=[7]
            ),
            decode_evaluation_prompt,
        ),
    ],
)
def test_unknown_names_and_kinds_are_refused(message: Message, decode: Callable[[bytes], object]) -> None:
    with pytest.raises(WireError):
        decode(message.SerializeToString())


def test_the_content_hash_tells_payloads_apart_and_has_128_bits() -> None:
    assert len(content_hash(b"")) == 16
    assert content_hash(b"a") != content_hash(b"b")


PACKED_FIELDS = {"prompt_token_planes", "token_planes", "packed_logprobs", "sizes"}
"""How the numbers of a rollout cross the bus since format 2."""
NOUNS: list[tuple[str, Any, set[str]]] = [
    ("Prompt", rollouts_pb2.Prompt, {"format"}),
    ("Sampling", rollouts_pb2.Sampling, set()),
    ("Rollout", rollouts_pb2.Rollout, {"format", *PACKED_FIELDS}),
    ("RolloutSummary", rollouts_pb2.RolloutSummary, set()),
    ("Group", rollouts_pb2.Group, {"format"}),
    ("PolicyVersion", rollouts_pb2.PolicyVersion, set()),
    ("VersionSpan", rollouts_pb2.VersionSpan, set()),
    ("RunCreated", ledger_pb2.RunCreated, set()),
    ("Origin", ledger_pb2.Origin, set()),
    ("Claim", ledger_pb2.Claim, set()),
    ("Issue", ledger_pb2.Issue, set()),
    ("Floors", ledger_pb2.Floors, set()),
    ("Drop", ledger_pb2.Drop, set()),
    ("Batch", ledger_pb2.Batch, set()),
    ("BatchGroup", ledger_pb2.BatchGroup, set()),
    ("Tally", ledger_pb2.Tally, set()),
    ("SamplingStats", ledger_pb2.SamplingStats, set()),
    ("StateChange", ledger_pb2.StateChange, set()),
    ("Lineage", ledger_pb2.Lineage, set()),
    ("Version", ledger_pb2.Version, set()),
    ("Checkpoint", ledger_pb2.Checkpoint, set()),
    ("TrainingFailed", ledger_pb2.TrainingFailed, set()),
    ("EvaluationPrompt", evaluation_pb2.EvaluationPrompt, {"format"}),
    ("EvaluationGroup", evaluation_pb2.EvaluationGroup, {"format"}),
    ("EvaluationBegun", evaluation_pb2.EvaluationBegun, set()),
    ("EvaluationEnded", evaluation_pb2.EvaluationEnded, set()),
    ("ScoreItem", reward_pb2.ScoreItem, set()),
    ("Verdict", reward_pb2.Verdict, {"id"}),
]


@pytest.mark.parametrize(("name", "message", "extra"), NOUNS)
def test_a_noun_and_its_message_have_the_same_fields_in_the_same_order(
    name: str, message: Any, extra: set[str]
) -> None:
    own = [field.name for field in fields(getattr(types, name))]
    assert [f.name for f in message.DESCRIPTOR.fields if f.name not in extra] == own


def test_every_record_kind_of_the_wire_is_known_to_the_codec() -> None:
    pairs: list[tuple[Any, Any]] = [
        (types.LedgerRecord, ledger_pb2.LedgerRecord),
        (types.TrainerRecord, ledger_pb2.TrainerRecord),
        (types.EvaluationRecord, evaluation_pb2.EvaluationRecord),
    ]
    for union, message in pairs:
        kinds = {field.message_type.name for field in message.DESCRIPTOR.oneofs_by_name["record"].fields}
        assert kinds == {kind.__name__ for kind in union.__args__}


def test_the_formats_are_those_that_the_golden_bytes_show() -> None:
    formats = codec.FORMAT, codec.ROLLOUT_FORMAT, codec.GROUP_FORMAT, records.LEDGER_FORMAT
    assert formats == (1, 3, 2, 3)
