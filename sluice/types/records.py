"""What the coordinator and the trainer write down: the records of LEDGER and TRAINER, each stored before it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sluice.types.group import DropReason, PolicyVersion, RolloutSummary


@dataclass(frozen=True, slots=True)
class Floors:
    """Stream sequences up to which nothing that is still needed was ever stored."""

    groups: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Issue:
    """ISSUE record: issue numbers [first, first + count) were issued at policy version number `version`.

    They take the next `count` draws of the data order that are not in `skipped`. Only at the end of the data is there
    a record with `count` 0: all that was left is skipped.
    """

    first: int
    count: int
    version: int
    floors: Floors
    skipped: tuple[int, ...] = ()
    """Draws of the data order that this record passes over, lowest first; all of them lie before the draw after it."""


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
    skipped: int = 0
    """Draws of the data order passed over so far: the next one is `next_n` + `skipped`."""


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
class Checkpoint:
    """Batches below `k` are in the weights at `path`; stored after the rename."""

    k: int
    lineage: int
    path: str
    checksum: str
    chain: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a forked run starts: a checkpoint of another run, and the data order from its trained frontier on.

    The fork's draw d is draw again[d] of that data order, and those after them are next_draw, next_draw + 1, …
    """

    run_id: str
    checkpoint: Checkpoint
    again: tuple[int, ...] = ()
    """Draws that the other run had issued and not settled, lowest first: no group of theirs comes along."""
    next_draw: int = 0

    def draw(self, of_fork: int) -> int:
        """The draw of the data order behind a draw of the fork."""
        new = of_fork - len(self.again)
        return self.next_draw + new if new >= 0 else self.again[of_fork]


@dataclass(frozen=True, slots=True)
class RunCreated:
    """First LEDGER record of a run: its immutable spec as canonical JSON, the hash of that, and what it trains on."""

    run_id: str
    spec_json: str
    config_hash: str
    data_json: str = ""
    """The data manifest (sluice/data/manifest.py) as JSON."""
    origin: Origin | None = None
    """None: it starts from its model, at training step 0 and draw 0."""

    @property
    def first_step(self) -> int:
        """Training steps that were in the weights when the run began: its first batch has this index."""
        return self.origin.checkpoint.k if self.origin else 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A coordinator has read the ledger to its end and is the only one to append from here on."""

    coordinator: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Groups given up on purpose, recorded before their slots are refilled."""

    groups: tuple[int, ...]
    reason: DropReason
    error: str = ""
    """Of groups that are stored and cannot be read (`failed`): why not."""


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
class TrainingFailed:
    """Training cannot go on by itself: NaN or Inf, a model that cannot be loaded, rollouts that were not scored."""

    lineage: int
    reason: str
    """One line that names what is wrong: the field, or the groups of the batch."""


TrainerRecord = Lineage | Version | Checkpoint | TrainingFailed
