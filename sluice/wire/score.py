"""Codec between the dataclasses of scoring (`sluice.types`) and the messages of `proto/sluice/wire/v1/reward.proto`."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.errors import WireError
from sluice.types import ScoreItem, Verdict, VerdictKind
from sluice.wire.v1 import reward_pb2 as pb

_TO_WIRE = {
    VerdictKind.SCORED: pb.VERDICT_KIND_SCORED,
    VerdictKind.TIMEOUT: pb.VERDICT_KIND_TIMEOUT,
    VerdictKind.ERROR: pb.VERDICT_KIND_ERROR,
}
_FROM_WIRE = {number: kind for kind, number in _TO_WIRE.items()}


def encode_request(items: Sequence[ScoreItem]) -> pb.ScoreRequest:
    """A request for one verdict an item."""
    return pb.ScoreRequest(items=[_encode_item(item) for item in items])


def decode_request(request: pb.ScoreRequest) -> list[ScoreItem]:
    """The items of a request, in order."""
    return [
        ScoreItem(
            id=item.id,
            data_source=item.data_source,
            prompt=item.prompt,
            response=item.response,
            ground_truth=item.ground_truth,
            extra_info=item.extra_info,
            response_length=item.response_length,
        )
        for item in request.items
    ]


def encode_response(items: Sequence[ScoreItem], verdicts: Sequence[Verdict]) -> pb.ScoreResponse:
    """The answer to `items`; each verdict carries the id of its item so that the caller can check the pairing."""
    pairs = zip(items, verdicts, strict=True)
    return pb.ScoreResponse(verdicts=[_encode_verdict(item.id, verdict) for item, verdict in pairs])


def decode_response(items: Sequence[ScoreItem], response: pb.ScoreResponse) -> list[Verdict]:
    """The verdicts of `items`, in their order.

    Raises:
        WireError: another number of verdicts, another order, an unknown kind, or a score where there can be none.
    """
    if len(response.verdicts) != len(items):
        raise WireError(f"asked for {len(items)} verdicts, the answer has {len(response.verdicts)}")
    return [_decode_verdict(item.id, message) for item, message in zip(items, response.verdicts, strict=True)]


def _encode_item(item: ScoreItem) -> pb.ScoreItem:
    return pb.ScoreItem(
        id=item.id,
        data_source=_text(item.data_source),
        prompt=_text(item.prompt),
        response=_text(item.response),
        ground_truth=_text(item.ground_truth),
        extra_info=_text(item.extra_info),
        response_length=item.response_length,
    )


def _text(text: str) -> str:
    """`text` as UTF-8 can carry it: an engine may cut a character in two, and half a surrogate pair is not text."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _encode_verdict(item_id: str, verdict: Verdict) -> pb.Verdict:
    return pb.Verdict(
        id=item_id,
        kind=_TO_WIRE[verdict.kind],
        acc=verdict.acc,
        score=verdict.score,
        extracted=_text(verdict.extracted),
        verifier=verdict.verifier,
        seconds=verdict.seconds,
        message=_text(verdict.message),
    )


def _decode_verdict(item_id: str, message: pb.Verdict) -> Verdict:
    if message.id != item_id:
        raise WireError(f"verdict {message.id!r} stands where that of item {item_id!r} belongs")
    kind = _FROM_WIRE.get(message.kind)
    if kind is None:
        raise WireError(f"verdict {item_id!r} has the unknown kind {int(message.kind)}; upgrade this reader")
    scored = kind is VerdictKind.SCORED
    if (message.HasField("acc"), message.HasField("score")) != (scored, scored):
        raise WireError(f"verdict {item_id!r} of kind {kind} must have acc and score exactly when it is scored")
    return Verdict(
        kind=kind,
        acc=message.acc if scored else None,
        score=message.score if scored else None,
        extracted=message.extracted,
        verifier=message.verifier,
        seconds=message.seconds,
        message=message.message,
    )
