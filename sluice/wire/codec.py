"""Dataclasses to bytes and back: the one place that knows the wire format.

Every message carries `format`; a newer program reads older formats, unknown fields are tolerated, and a message that
breaks the contract (wrong lengths, missing parts, unknown names) is a WireError, never repaired.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from sluice.errors import WireError
from sluice.packed import WIDTH, LogProbs, TokenIds
from sluice.types import (
    FinishReason,
    Group,
    GroupStatus,
    PolicyVersion,
    Prompt,
    Rollout,
    RolloutSummary,
    Sampling,
    VerdictKind,
    VersionSpan,
    spans_cover,
)
from sluice.wire.payload import decompress, is_compressed
from sluice.wire.v1 import rollouts_pb2 as pb

FORMAT = 1
ROLLOUT_FORMAT = 3
"""A message that is the header of its numbers."""
ZSTD_FORMATS = 2
"""Formats 1 and 2 had their numbers within the message, and all of it under zstd; still read."""
LENGTH_BYTES, BLOCKS = 4, 5
GROUP_FORMAT = 2
"""Of groups whose rollouts share messages; in format 1 each has messages of its own."""
M = TypeVar("M", bound=Message)


def parse(kind: type[M], payload: bytes, newest: int = FORMAT) -> M:
    """Decode one protobuf message of a format up to `newest`.

    Raises:
        WireError: the bytes are not such a message, or its format is newer than this program.
    """
    message = kind()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise WireError(f"{kind.__name__} of {len(payload)} bytes cannot be decoded: {error}") from None
    number = getattr(message, "format", newest)
    if not 1 <= number <= newest:
        raise WireError(f"{kind.__name__} has format {number}; this program reads 1 to {newest}")
    return message


def encode_prompt(prompt: Prompt) -> bytes:
    s = prompt.sampling
    message = pb.Prompt(
        format=FORMAT,
        run_id=prompt.run_id,
        n=prompt.n,
        index=prompt.index,
        epoch=prompt.epoch,
        token_ids=prompt.token_ids,
        text=prompt.text,
        ground_truth=prompt.ground_truth,
        data_source=prompt.data_source,
        extra_info=prompt.extra_info,
        group_size=prompt.group_size,
        sampling=pb.Sampling(
            max_new_tokens=s.max_new_tokens,
            temperature=s.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            stop_token_ids=s.stop_token_ids,
        ),
        seed=prompt.seed,
        min_version=prompt.min_version,
    )
    return message.SerializeToString()


def decode_prompt(payload: bytes) -> Prompt:
    """Raises: WireError."""
    m = parse(pb.Prompt, payload)
    if not m.token_ids or not m.group_size:
        raise WireError(f"prompt {m.run_id}/{m.n} has {len(m.token_ids)} tokens and group size {m.group_size}")
    s = m.sampling
    return Prompt(
        run_id=m.run_id,
        n=m.n,
        index=m.index,
        epoch=m.epoch,
        token_ids=tuple(m.token_ids),
        text=m.text,
        ground_truth=m.ground_truth,
        data_source=m.data_source,
        extra_info=m.extra_info,
        group_size=m.group_size,
        sampling=Sampling(s.max_new_tokens, s.temperature, s.top_p, s.top_k, tuple(s.stop_token_ids)),
        seed=m.seed,
        min_version=m.min_version,
    )


def encode_rollout(rollout: Rollout) -> bytes:
    """The payload that is hashed, packed into messages and stored: a header, and the numbers as they lie in memory."""
    blocks = *rollout.prompt_token_ids.halves(), *rollout.token_ids.halves(), rollout.logprobs.block
    message = pb.Rollout(
        format=ROLLOUT_FORMAT,
        run_id=rollout.run_id,
        n=rollout.n,
        attempt=rollout.attempt,
        i=rollout.i,
        finish_reason=rollout.finish_reason,
        sizes=map(len, blocks),
    )
    for span in rollout.spans:  # in place: see ADR 0024 on blocks that messages free
        added = message.spans.add(start=span.start, end=span.end)
        added.version.number, added.version.lineage = span.version.number, span.version.lineage
    header = message.SerializeToString()
    return b"".join((len(header).to_bytes(LENGTH_BYTES, "little"), header, *blocks))


def decode_rollout(payload: bytes) -> Rollout:
    """Raises: WireError: not a rollout, lengths that disagree, or spans that do not cover its tokens."""
    if is_compressed(payload):
        m = parse(pb.Rollout, decompress(payload, "rollout"), ZSTD_FORMATS)
        numbers = _numbers_of_older
    else:
        start = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
        m = parse(pb.Rollout, payload[LENGTH_BYTES:start], ROLLOUT_FORMAT)
        if m.format <= ZSTD_FORMATS:
            raise WireError(f"a rollout of format {m.format} is not in zstd, as all of that format are")
        numbers = partial(_numbers, payload=payload, start=start)
    name = f"rollout {m.run_id}/{m.n}/{m.attempt}/{m.i}"
    try:
        prompt_token_ids, token_ids, logprobs = numbers(m)
        spans = _spans_from(m.spans)
        if not spans_cover(spans, len(token_ids)):
            borders = [(s.start, s.end) for s in spans]
            raise ValueError(f"version spans {borders} do not cover {len(token_ids)} tokens")
        return Rollout(
            run_id=m.run_id,
            n=m.n,
            attempt=m.attempt,
            i=m.i,
            prompt_token_ids=prompt_token_ids,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=FinishReason(m.finish_reason),
            spans=spans,
        )
    except ValueError as error:
        raise WireError(f"{name}: {error}") from None


def _numbers(m: pb.Rollout, payload: bytes, start: int) -> tuple[TokenIds, TokenIds, LogProbs]:
    """Prompt, response and log-probs from byte `start` on, behind the header. Raises: ValueError: it says otherwise."""
    ends = list(accumulate(m.sizes, initial=start))
    if len(m.sizes) != BLOCKS or ends[-1] != len(payload):
        raise ValueError(f"{len(m.sizes)} blocks end at byte {ends[-1]}, its payload at {len(payload)}")
    blocks = [payload[begin:end] for begin, end in pairwise(ends)]
    return TokenIds.of_halves(*blocks[0:2]), TokenIds.of_halves(*blocks[2:4]), LogProbs.of_block(blocks[4])


def _numbers_of_older(m: pb.Rollout) -> tuple[TokenIds, TokenIds, LogProbs]:
    """Prompt, response and log-probs within a message of format 1 or 2. Raises: ValueError."""
    if m.format == 1:
        return TokenIds(m.prompt_token_ids), TokenIds(m.token_ids), LogProbs(m.logprobs)
    prompt, tokens = _from_planes(m.prompt_token_planes), _from_planes(m.token_planes)
    return prompt, tokens, LogProbs.of_block(m.packed_logprobs)


def _from_planes(planes: bytes) -> TokenIds:
    """Ids of format 2: the lowest byte of each, then the second of each, and so on. Raises: ValueError."""
    if len(planes) % WIDTH:
        raise ValueError(f"{len(planes)} bytes are no whole number of {WIDTH}-byte numbers")
    return TokenIds.of_block(np.frombuffer(planes, "u1").reshape(WIDTH, -1).T.tobytes())


def encode_group(group: Group) -> bytes:
    message = pb.Group(
        format=GROUP_FORMAT if any(r.nbytes for r in group.rollouts) else FORMAT,
        run_id=group.run_id,
        n=group.n,
        attempt=group.attempt,
        status=group.status,
        rollouts=[summary_to_wire(r) for r in group.rollouts],
        worker=group.worker,
        engine=group.engine,
        min_version=group.min_version,
        generate_seconds=group.generate_seconds,
        reward_seconds=group.reward_seconds,
        sample_text=group.sample_text,
        error=group.error,
    )
    return message.SerializeToString()


def decode_group(payload: bytes) -> Group:
    """Raises: WireError."""
    m = parse(pb.Group, payload, GROUP_FORMAT)
    try:
        return Group(
            run_id=m.run_id,
            n=m.n,
            attempt=m.attempt,
            status=GroupStatus(m.status),
            rollouts=tuple(summary_from_wire(r) for r in m.rollouts),
            worker=m.worker,
            engine=m.engine,
            min_version=m.min_version,
            generate_seconds=m.generate_seconds,
            reward_seconds=m.reward_seconds,
            sample_text=m.sample_text,
            error=m.error,
        )
    except ValueError as error:
        raise WireError(f"group {m.run_id}/{m.n}: {error}") from None


def summary_to_wire(summary: RolloutSummary) -> pb.RolloutSummary:
    return pb.RolloutSummary(
        sequences=summary.sequences,
        content_hash=summary.content_hash,
        verdict=summary.verdict,
        acc=summary.acc,
        score=summary.score,
        shaping=summary.shaping,
        length=summary.length,
        finish_reason=summary.finish_reason,
        oldest_version=version_to_wire(summary.oldest_version),
        newest_version=version_to_wire(summary.newest_version),
        spans=[_span(s) for s in summary.spans],
        offset=summary.offset,
        nbytes=summary.nbytes,
    )


def summary_from_wire(m: pb.RolloutSummary) -> RolloutSummary:
    """Raises: ValueError: an unknown verdict kind or finish reason."""
    return RolloutSummary(
        sequences=tuple(m.sequences),
        content_hash=m.content_hash,
        verdict=VerdictKind(m.verdict),
        acc=m.acc,
        score=m.score,
        shaping=m.shaping,
        length=m.length,
        finish_reason=FinishReason(m.finish_reason),
        oldest_version=version_from_wire(m.oldest_version),
        newest_version=version_from_wire(m.newest_version),
        spans=_spans_from(m.spans),
        offset=m.offset,
        nbytes=m.nbytes,
    )


def version_to_wire(version: PolicyVersion) -> pb.PolicyVersion:
    return pb.PolicyVersion(number=version.number, lineage=version.lineage)


def version_from_wire(m: pb.PolicyVersion) -> PolicyVersion:
    return PolicyVersion(m.number, m.lineage)


def _spans_from(spans: Iterable[pb.VersionSpan]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(version_from_wire(s.version), s.start, s.end) for s in spans)


def _span(span: VersionSpan) -> pb.VersionSpan:
    return pb.VersionSpan(version=version_to_wire(span.version), start=span.start, end=span.end)
