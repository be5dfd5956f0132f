"""What crosses the wire between workers and the reward service."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import WireError
from sluice.types import ScoreItem, Verdict, VerdictKind
from sluice.wire.score import decode_request, decode_response, encode_request, encode_response
from sluice.wire.v1 import reward_pb2

TEXT = st.text(st.characters(codec="utf-8"))
ITEMS = st.builds(
    ScoreItem,
    id=TEXT,
    data_source=TEXT,
    prompt=TEXT,
    response=TEXT,
    ground_truth=TEXT,
    extra_info=TEXT,
    response_length=st.integers(0, 2**32 - 1),
)
NUMBERS = st.floats(allow_nan=False)
SCORED = st.builds(
    Verdict,
    kind=st.just(VerdictKind.SCORED),
    acc=NUMBERS,
    score=NUMBERS,
    extracted=TEXT,
    verifier=TEXT,
    seconds=NUMBERS,
    message=TEXT,
)
FAILED = st.builds(
    Verdict,
    kind=st.sampled_from([VerdictKind.TIMEOUT, VerdictKind.ERROR]),
    acc=st.none(),
    score=st.none(),
    extracted=TEXT,
    verifier=TEXT,
    seconds=NUMBERS,
    message=TEXT,
)
ITEM = ScoreItem("a", "exact", "p", "r", "g", "{}", 1)
VERDICT = Verdict(VerdictKind.SCORED, 0.0, 0.0, "", "exact", 0.0)


@given(st.lists(ITEMS))
def test_items_come_back_as_they_were_sent(items: list[ScoreItem]) -> None:
    message = reward_pb2.ScoreRequest.FromString(encode_request(items).SerializeToString())
    assert decode_request(message) == items


@given(st.lists(st.tuples(ITEMS, SCORED | FAILED)))
def test_verdicts_come_back_as_they_were_given(pairs: list[tuple[ScoreItem, Verdict]]) -> None:
    items, verdicts = [item for item, _ in pairs], [verdict for _, verdict in pairs]
    message = reward_pb2.ScoreResponse.FromString(encode_response(items, verdicts).SerializeToString())
    assert decode_response(items, message) == verdicts


def test_each_field_of_the_dataclasses_has_its_field_on_the_wire() -> None:
    item = {field.name for field in dataclasses.fields(ScoreItem)}
    verdict = {field.name for field in dataclasses.fields(Verdict)}
    assert set(reward_pb2.ScoreItem.DESCRIPTOR.fields_by_name) == item
    assert set(reward_pb2.Verdict.DESCRIPTOR.fields_by_name) == verdict | {"id"}


def test_half_a_surrogate_pair_is_sent_as_a_question_mark() -> None:
    (item,) = decode_request(encode_request([dataclasses.replace(ITEM, response="é\ud83d!")]))
    assert item.response == "é?!"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "asked for 1 verdicts, the answer has 0"),
        ([reward_pb2.Verdict(id="b", kind=reward_pb2.VERDICT_KIND_ERROR)], "'b' stands where that of item 'a' belongs"),
        ([reward_pb2.Verdict(id="a")], "unknown kind 0"),
        ([reward_pb2.Verdict(id="a", kind=reward_pb2.VERDICT_KIND_SCORED, acc=1)], "exactly when it is scored"),
        (
            [reward_pb2.Verdict(id="a", kind=reward_pb2.VERDICT_KIND_TIMEOUT, acc=0, score=0)],
            "exactly when it is scored",
        ),
    ],
)
def test_an_answer_that_does_not_fit_the_request_is_rejected(answer: list[reward_pb2.Verdict], message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode_response([ITEM], reward_pb2.ScoreResponse(verdicts=answer))


def test_fields_of_a_newer_writer_are_tolerated() -> None:
    unknown_field_99 = b"\x9a\x06\x01x"
    message = encode_response([ITEM], [VERDICT]).SerializeToString() + unknown_field_99
    assert decode_response([ITEM], reward_pb2.ScoreResponse.FromString(message)) == [VERDICT]
