"""Evaluation prompts, groups and records to bytes and back; the rest of the wire is in `codec` and `records`."""

from __future__ import annotations

import zstandard

from sluice.errors import WireError
from sluice.types import (
    EvaluatedResponse,
    EvaluationBegun,
    EvaluationEnded,
    EvaluationGroup,
    EvaluationOutcome,
    EvaluationPrompt,
    EvaluationRecord,
    FinishReason,
    Verdict,
    VerdictKind,
)
from sluice.wire.codec import (
    FORMAT,
    decode_prompt,
    encode_prompt,
    parse,
    version_from_wire,
    version_to_wire,
)
from sluice.wire.payload import MAX_MESSAGE_BYTES, decompress
from sluice.wire.v1 import evaluation_pb2 as pb
from sluice.wire.v1 import rollouts_pb2


def encode_evaluation_prompt(asked: EvaluationPrompt) -> bytes:
    message = pb.EvaluationPrompt(
        format=FORMAT,
        version=version_to_wire(asked.version),
        prompt=rollouts_pb2.Prompt.FromString(encode_prompt(asked.prompt)),
        seeds=asked.seeds,
    )
    return message.SerializeToString()


def decode_evaluation_prompt(payload: bytes) -> EvaluationPrompt:
    """Raises: WireError."""
    m = parse(pb.EvaluationPrompt, payload)
    prompt = decode_prompt(m.prompt.SerializeToString())
    if len(m.seeds) != prompt.group_size:
        raise WireError(
            f"evaluation prompt {prompt.run_id}/{prompt.n} has {len(m.seeds)} seeds for {prompt.group_size} responses"
        )
    return EvaluationPrompt(version_from_wire(m.version), prompt, tuple(m.seeds))


def encode_evaluation_group(group: EvaluationGroup) -> bytes:
    """Protobuf, then zstd. A group that would not fit into one message goes without its texts: verdicts count."""
    whole = _compressed(_group(group))
    if len(whole) <= MAX_MESSAGE_BYTES:
        return whole
    message = _group(group)
    for response in message.responses:
        response.text = ""
    return _compressed(message)


def decode_evaluation_group(payload: bytes) -> EvaluationGroup:
    """Raises: WireError."""
    m = parse(pb.EvaluationGroup, decompress(payload, "evaluation group"))
    try:
        return EvaluationGroup(
            run_id=m.run_id,
            version=version_from_wire(m.version),
            n=m.n,
            responses=tuple(_response_from(r) for r in m.responses),
            worker=m.worker,
            engine=m.engine,
            generate_seconds=m.generate_seconds,
            reward_seconds=m.reward_seconds,
            error=m.error,
        )
    except ValueError as error:
        raise WireError(f"evaluation group {m.run_id}/{m.n}: {error}") from None


def encode_evaluation(record: EvaluationRecord) -> bytes:
    message = pb.EvaluationRecord(format=FORMAT)
    version = version_to_wire(record.version)
    match record:
        case EvaluationBegun(_, prompts, responses, settings_json):
            begun = pb.EvaluationBegun(
                version=version, prompts=prompts, responses=responses, settings_json=settings_json
            )
            message.begun.CopyFrom(begun)
        case EvaluationEnded(_, outcome, reason, results_json):
            ended = pb.EvaluationEnded(version=version, outcome=outcome, reason=reason, results_json=results_json)
            message.ended.CopyFrom(ended)
    return message.SerializeToString()


def decode_evaluation(payload: bytes) -> EvaluationRecord:
    """Raises: WireError: not a record of an evaluation, or one of a kind this program does not know."""
    m = parse(pb.EvaluationRecord, payload)
    try:
        match m.WhichOneof("record"):
            case "begun":
                b = m.begun
                return EvaluationBegun(version_from_wire(b.version), b.prompts, b.responses, b.settings_json)
            case "ended":
                e = m.ended
                return EvaluationEnded(
                    version_from_wire(e.version), EvaluationOutcome(e.outcome), e.reason, e.results_json
                )
    except ValueError as error:
        raise WireError(f"evaluation record: {error}") from None
    raise WireError("evaluation record of a kind this program does not know")


def _compressed(message: pb.EvaluationGroup) -> bytes:
    return zstandard.ZstdCompressor().compress(message.SerializeToString())


def _group(group: EvaluationGroup) -> pb.EvaluationGroup:
    return pb.EvaluationGroup(
        format=FORMAT,
        run_id=group.run_id,
        version=version_to_wire(group.version),
        n=group.n,
        responses=[_response(r) for r in group.responses],
        worker=group.worker,
        engine=group.engine,
        generate_seconds=group.generate_seconds,
        reward_seconds=group.reward_seconds,
        error=group.error,
    )


def _response(response: EvaluatedResponse) -> pb.EvaluatedResponse:
    verdict = response.verdict
    return pb.EvaluatedResponse(
        text=response.text,
        length=response.length,
        finish_reason=response.finish_reason,
        verdict=verdict.kind,
        acc=verdict.acc,
        score=verdict.score,
        extracted=verdict.extracted,
        verifier=verdict.verifier,
        seconds=verdict.seconds,
        message=verdict.message,
    )


def _response_from(m: pb.EvaluatedResponse) -> EvaluatedResponse:
    """Raises: ValueError: an unknown verdict kind or finish reason."""
    verdict = Verdict(
        kind=VerdictKind(m.verdict),
        acc=m.acc if m.HasField("acc") else None,
        score=m.score if m.HasField("score") else None,
        extracted=m.extracted,
        verifier=m.verifier,
        seconds=m.seconds,
        message=m.message,
    )
    return EvaluatedResponse(m.text, m.length, FinishReason(m.finish_reason), verdict)
