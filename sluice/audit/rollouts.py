"""ROLLOUTS against the summaries that were scored: the right bytes, of the right attempt, sampled as they say."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import zstandard
from blake3 import blake3
from google.protobuf.message import DecodeError

from sluice.audit.findings import Fault, Finding
from sluice.wire.v1.rollouts_pb2 import Rollout, RolloutSummary

MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Scored:
    """A group whose rollouts must be what was scored: of a batch, or kept and waiting for one."""

    where: str
    n: int
    attempt: str
    rollouts: Sequence[RolloutSummary]


@dataclass(slots=True)
class _Expected:
    group: Scored
    i: int
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def summary(self) -> RolloutSummary:
        return self.group.rollouts[self.i]

    @property
    def name(self) -> str:
        return f"rollout {self.i} of group {self.group.n}{self.group.where}"

    @property
    def payload(self) -> bytes:
        """Once all parts are there: the bytes that the summary names, in the only message or in all of them."""
        whole = b"".join(self.parts[sequence] for sequence in self.summary.sequences)
        start, nbytes = self.summary.offset, self.summary.nbytes
        return whole[start : start + nbytes] if nbytes else whole

    def is_apart_from(self, other: _Expected) -> bool:
        """Whether two that name the same message may: rollouts of one group, in stretches of it that do not meet."""
        if self.group is not other.group:
            return False
        first, second = sorted((self.summary, other.summary), key=lambda summary: summary.offset)
        return 0 < first.nbytes <= second.offset - first.offset and second.nbytes > 0


class RolloutCheck:
    """Takes the messages of ROLLOUTS one by one in sequence order, holds none but those of the rollout at hand."""

    def __init__(self, run_id: str, groups: Iterable[Scored], purged: int) -> None:
        self.findings: list[Finding] = []
        self.verified = 0
        self.purged = 0
        """Rollouts of batches that are gone because a checkpoint covers them."""
        self.orphans = 0
        """Messages that no group names: of attempts that died or lost, or of dropped groups."""
        self.attempts: defaultdict[int, set[str]] = defaultdict(set)
        """Issue number -> attempts that have a rollout in the stream."""
        self._run_id, self._purged_to = run_id, purged
        self._expected: defaultdict[int, list[_Expected]] = defaultdict(list)
        for group in groups:
            for i, summary in enumerate(group.rollouts):
                self._expect(_Expected(group, i), summary)

    def _expect(self, expected: _Expected, summary: RolloutSummary) -> None:
        if not summary.sequences or not summary.content_hash:
            self.findings.append(Finding(Fault.ROLLOUT_MISSING, f"{expected.name} was never stored"))
        for sequence in summary.sequences:
            others = self._expected[sequence]
            if other := next((other for other in others if not expected.is_apart_from(other)), None):
                detail = f"{expected.name} and {other.name} name the same bytes of ROLLOUTS sequence {sequence}"
                self.findings.append(Finding(Fault.ROLLOUT_SWAPPED, detail))
            others.append(expected)

    def take(self, sequence: int, payload: bytes) -> None:
        """Look at the next stored message."""
        named = self._expected.pop(sequence, None)
        if named is None:
            self._take_orphan(payload)
            return
        for expected in named:
            expected.parts[sequence] = payload
            if len(expected.parts) == len(expected.summary.sequences):
                self._verify(expected, expected.payload)
                expected.parts.clear()

    def finish(self) -> list[Finding]:
        """What never came, and everything found before."""
        for sequence, named in self._expected.items():
            if sequence <= self._purged_to:
                self.purged += sum(expected.summary.sequences[0] == sequence for expected in named)
                continue
            for expected in named:
                detail = f"{expected.name}: ROLLOUTS sequence {sequence} is gone, nothing may purge it yet"
                self.findings.append(Finding(Fault.ROLLOUT_MISSING, detail))
        return self.findings

    def _take_orphan(self, payload: bytes) -> None:
        self.orphans += 1
        rollout = _decode(payload)
        if rollout is not None and rollout.run_id == self._run_id:
            self.attempts[rollout.n].add(rollout.attempt)

    def _verify(self, expected: _Expected, payload: bytes) -> None:
        self.verified += 1
        if expected.summary.content_hash not in _hashes(payload):
            detail = f"{expected.name}: the stored bytes do not have the content hash that its group names"
            self.findings.append(Finding(Fault.ROLLOUT_SWAPPED, detail))
            return
        rollout = _decode(payload)
        if rollout is None or not _is_whole(rollout, payload):
            self.findings.append(Finding(Fault.UNREADABLE, f"{expected.name} cannot be decoded"))
            return
        self.attempts[rollout.n].add(rollout.attempt)
        identity = (rollout.run_id, rollout.n, rollout.attempt, rollout.i)
        if identity != (self._run_id, expected.group.n, expected.group.attempt, expected.i):
            detail = f"{expected.name}, attempt {expected.group.attempt}: the stored rollout is {identity}"
            self.findings.append(Finding(Fault.ROLLOUT_SWAPPED, detail))
        for what in _differences(rollout, expected.summary):
            self.findings.append(Finding(Fault.ROLLOUT_DIFFERS, f"{expected.name}: {what}"))


def _hashes(payload: bytes) -> tuple[bytes, bytes, bytes]:
    """What a group may name these bytes by: 128 bits of BLAKE3, or of SHA-256 or BLAKE2b as older releases did."""
    older = hashlib.sha256(payload).digest()[:16], hashlib.blake2b(payload, digest_size=16).digest()
    return blake3(payload).digest(16), *older


def _decode(payload: bytes) -> Rollout | None:
    """The (first) rollout in a payload, or None for what is none: damaged bytes, or a later part of several."""
    rollout, formats = Rollout(), range(3, 4)
    try:
        if payload.startswith(zstandard.FRAME_HEADER):  # as it was before format 3
            formats = range(1, 3)
            if zstandard.frame_content_size(payload) > MAX_BYTES:
                return None
            header = zstandard.ZstdDecompressor().decompress(payload, max_output_size=MAX_BYTES)
        else:
            header = payload[4 : 4 + int.from_bytes(payload[:4], "little")]
        rollout.ParseFromString(header)
    except (zstandard.ZstdError, DecodeError):
        return None
    return rollout if rollout.format in formats and (rollout.format < 3 or len(rollout.sizes) == 5) else None


def _is_whole(rollout: Rollout, payload: bytes) -> bool:
    """Whether the blocks behind the header are those that it names; before format 3 all was within the message."""
    if rollout.format < 3:
        return True
    header, sizes = int.from_bytes(payload[:4], "little"), rollout.sizes
    halves = all(high in (0, low / 2, low) for low, high in ((sizes[0], sizes[1]), (sizes[2], sizes[3])))
    return halves and 4 + header + sum(sizes) == len(payload)


def _lengths(rollout: Rollout) -> tuple[float, float]:
    """Response tokens and log-probs: counted in format 1, by bytes of an id and of a log-prob in those after it."""
    match rollout.format:
        case 1:
            return len(rollout.token_ids), len(rollout.logprobs)
        case 2:
            return len(rollout.token_planes) / 4, len(rollout.packed_logprobs) / 4
        case _:
            _, _, tokens, _, logprobs = rollout.sizes
            return tokens / 2, logprobs / 4


def _differences(rollout: Rollout, summary: RolloutSummary) -> Iterator[str]:
    tokens, logprobs = _lengths(rollout)
    if logprobs != tokens or summary.length != tokens:
        yield f"{tokens:g} tokens, {logprobs:g} log-probs, its group says {summary.length}"
    if rollout.finish_reason != summary.finish_reason:
        yield f"it ended by {rollout.finish_reason}, its group says {summary.finish_reason}"
    borders = [0, *(s.end for s in rollout.spans)]
    if [s.start for s in rollout.spans] != borders[:-1] or borders[-1] != tokens or borders != sorted(borders):
        yield f"its version spans do not cover its {tokens:g} tokens"
    versions = [(s.version.number, s.version.lineage) for s in rollout.spans if s.end > s.start]
    named = [(v.number, v.lineage) for v in (summary.oldest_version, summary.newest_version)]
    if versions and [min(versions), max(versions)] != named:
        yield f"its tokens are of versions {min(versions)} to {max(versions)}, its group says {named[0]} to {named[1]}"
