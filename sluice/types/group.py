"""A group's life, from the prompt that is issued to the verdicts on what was sampled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.packed import LogProbs, TokenIds


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """A published set of weights: `number` batches have been trained; `lineage` rises at each restore of a trainer.

    Deadlines, staleness and minimum versions use the number alone; a delta's parent is named by both.
    """

    number: int
    lineage: int

    def __str__(self) -> str:
        return f"v{self.number}.{self.lineage}"

    @classmethod
    def parse(cls, text: str) -> PolicyVersion:
        """Read the form that `str` writes, e.g. `v12.3`.

        Raises:
            ValueError: the text has another form.
        """
        match = re.fullmatch(r"v(\d+)\.(\d+)", text)
        if match is None:
            raise ValueError(f"policy version {text!r} is not of the form v<number>.<lineage>")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine samples. Temperature 1 and top-p 1 keep behaviour log-probs those of the policy itself."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One issued prompt: a pure function of the run's spec, the issue number `n` and its ISSUE record."""

    run_id: str
    n: int
    index: int
    """Row of the data set."""
    epoch: int
    token_ids: tuple[int, ...]
    text: str
    ground_truth: str
    data_source: str
    extra_info: str
    """JSON object, opaque to everybody but the verifier."""
    group_size: int
    sampling: Sampling
    seed: int
    min_version: int
    """Number of the policy version at issue: the engine holds at least this one before it generates."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Response tokens [start, end) were sampled from `version`."""

    version: PolicyVersion
    start: int
    end: int


def spans_cover(spans: Sequence[VersionSpan], tokens: int) -> bool:
    """Whether `spans` go from the first of `tokens` response tokens to the last, in order and without a gap."""
    borders = [0, *(span.end for span in spans)]
    return [span.start for span in spans] == borders[:-1] and borders[-1] == tokens and borders == sorted(borders)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion of an attempt at a group.

    `token_ids`, `logprobs`: [T] response tokens and their behaviour log-probs (nats).
    """

    run_id: str
    n: int
    attempt: str
    i: int
    prompt_token_ids: TokenIds
    token_ids: TokenIds
    logprobs: LogProbs
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"rollout {self.run_id}/{self.n}/{self.attempt}/{self.i} has {len(self.token_ids)} tokens "
                f"but {len(self.logprobs)} log-probs"
            )


class VerdictKind(StrEnum):
    SCORED = "scored"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """What a verifier is given: one response with everything known about its prompt."""

    id: str
    data_source: str
    prompt: str
    response: str
    ground_truth: str
    extra_info: str
    """JSON object."""
    response_length: int
    """In tokens."""


NO_ANSWER = "[INVALID]"
"""What `extracted` says when no answer was found: the mark of the released rule. Such verdicts are counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier found. A failure has no `acc` and no `score`: it is never a 0."""

    kind: VerdictKind
    acc: float | None
    score: float | None
    extracted: str
    verifier: str
    """Name and version of the code that judged."""
    seconds: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """A rollout as its group's metadata names it. `sequences` and `content_hash` are empty when it was not stored."""

    sequences: tuple[int, ...]
    """Of the ROLLOUTS messages that hold it, in order."""
    content_hash: bytes
    """128 bits of its payload's BLAKE3; groups of older releases have SHA-256 or BLAKE2b."""
    verdict: VerdictKind
    acc: float
    score: float
    shaping: float
    """Overlong punishment; reward = score + shaping."""
    length: int
    """Response tokens."""
    finish_reason: FinishReason
    oldest_version: PolicyVersion
    newest_version: PolicyVersion
    spans: tuple[VersionSpan, ...] = ()
    """In a group's metadata, if its tokens are of several versions; else its one version is both of the above."""
    offset: int = 0
    """Where its payload begins in its message, in bytes; neighbours of the same attempt share one."""
    nbytes: int = 0
    """Length of its payload; 0 in groups of older releases, whose rollouts had messages of their own."""

    @property
    def reward(self) -> float:
        return self.score + self.shaping


class GroupStatus(StrEnum):
    SCORED = "scored"
    VERIFIER_FAILED = "verifier_failed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Group:
    """Metadata of group n: the one commit of an attempt, stored after all its rollouts are stored and scored."""

    run_id: str
    n: int
    attempt: str
    status: GroupStatus
    rollouts: tuple[RolloutSummary, ...]
    worker: str
    engine: str
    min_version: int
    generate_seconds: float
    reward_seconds: float
    sample_text: str = ""
    """Response of rollout 0, cut short: for people."""
    error: str = ""


class DropReason(StrEnum):
    """Why a group never trains. Always: issued = trained + Σ dropped by reason + live."""

    ALL_CORRECT = "all_correct"
    ALL_WRONG = "all_wrong"
    UNIFORM = "uniform"
    VERIFIER_FAILED = "verifier_failed"
    FAILED = "failed"
    SURPLUS = "surplus"
    STRAGGLER = "straggler"
    CANCELLED = "cancelled"
    RUN_ENDED = "run_ended"
    SKIPPED_BATCH = "skipped_batch"
