"""The nouns that every service shares, as frozen dataclasses. `sluice.wire.codec` turns them into bytes.

Read from top to bottom this is the life of a group: a Prompt is issued, a worker makes Rollouts, the reward service
gives Verdicts, the worker stores a Group, the coordinator puts it into a Batch, the trainer turns that into the next
PolicyVersion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """ROLLOUTS stream sequences of its parts, in order."""
    content_hash: bytes
    """BLAKE2b-128 of the stored payload."""
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


@dataclass(frozen=True, slots=True)
class Floors:
    """Stream sequences up to which nothing that is still needed was ever stored."""

    groups: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Issue:
    """ISSUE record: issue numbers [first, first + count) were issued at policy version number `version`."""

    first: int
    count: int
    version: int
    floors: Floors


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """A kept group as a BATCH record names it: all that a trainer rank needs to fetch and weigh its rollouts."""

    n: int
    attempt: str
    version: int
    """Policy version number at issue."""
    groups_sequence: int
    rollouts: tuple[RolloutSummary, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """Cumulative counts of a run as of a BATCH record; `dropped` has every reason that occurred."""

    issued: int = 0
    trained: int = 0
    dropped: dict[DropReason, int] = field(default_factory=dict)
    scored_groups: int = 0
    """Groups whose every rollout has a verdict: the denominator of the keep rate."""
    kept_groups: int = 0
    """Kept groups, trained or not: the numerator of the keep rate."""


@dataclass(frozen=True, slots=True)
class SamplingStats:
    """What was sampled since the last batch, dropped groups included: sums, so that means add up over batches."""

    groups: int = 0
    rollouts: int = 0
    reward_sum: float = 0.0
    acc_sum: float = 0.0
    length_sum: int = 0
    truncated: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """BATCH record k: the groups that training step k consumes, and all that a successor needs to rebuild the queue."""

    k: int
    groups: tuple[BatchGroup, ...]
    dropped: tuple[tuple[int, DropReason], ...]
    """Groups settled without training since the last batch."""
    next_n: int
    live: tuple[Issue, ...]
    """The groups still live after this batch, as ranges with their ISSUE data."""
    floors: Floors
    tally: Tally
    sampled: SamplingStats
    version: int
    """Highest policy version number published when the batch was emitted."""
    groups_seen: int = 0
    """GROUPS sequence up to which `tally` and `sampled` have counted: a rebuild counts nothing twice."""


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        return self in (RunState.STOPPED, RunState.SUCCEEDED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class RunCreated:
    """First LEDGER record of a run: its immutable spec as canonical JSON, the hash of that, and what it trains on."""

    run_id: str
    spec_json: str
    config_hash: str
    data_json: str = ""
    """The data manifest (sluice/data/manifest.py) as JSON."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A coordinator has read the ledger to its end and is the only one to append from here on."""

    coordinator: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Groups given up on purpose, recorded before their slots are refilled."""

    groups: tuple[int, ...]
    reason: DropReason


@dataclass(frozen=True, slots=True)
class StateChange:
    """The run's lifecycle moved; `reason` is what people read. `fields` holds schedule changes as JSON, or is empty."""

    state: RunState
    reason: str
    fields_json: str = ""


LedgerRecord = RunCreated | Claim | Issue | Drop | Batch | StateChange


@dataclass(frozen=True, slots=True)
class Lineage:
    """A trainer has started: `lineage` is its own; it restores checkpoint number `restored` (0: the initial model)."""

    lineage: int
    trainer: str
    restored: int


@dataclass(frozen=True, slots=True)
class Version:
    """Policy version published: where its manifest is, and the hash chain of all batches in it."""

    version: PolicyVersion
    uri: str
    """`file://` directory all can see, or `grpc://host:port`."""
    manifest_hash: str
    chain: str
    """Hex of h(number): h(k+1) = BLAKE2b(h(k) ‖ digest of batch k as fetched)."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Batches below `k` are in the weights at `path`; stored after the rename."""

    k: int
    lineage: int
    path: str
    checksum: str
    chain: str


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """Training cannot go on by itself: NaN or Inf, a model that cannot be loaded, rollouts that were not scored."""

    lineage: int
    reason: str
    """One line that names what is wrong: the field, or the groups of the batch."""


TrainerRecord = Lineage | Version | Checkpoint | TrainingFailed
