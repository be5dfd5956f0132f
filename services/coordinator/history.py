"""A run as its two subjects tell it: the fold of LEDGER and TRAINER records, and nothing else."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from datetime import datetime
from operator import itemgetter
from typing import Any

from services.coordinator.draws import Draws
from services.coordinator.fates import Fates
from sluice.config import RunSpec, parse_run_spec
from sluice.transport.log import Entry
from sluice.types import (
    Batch,
    Checkpoint,
    Drop,
    Issue,
    LedgerRecord,
    Lineage,
    Origin,
    RunCreated,
    RunState,
    StateChange,
    Tally,
    TrainerRecord,
    TrainingFailed,
    Version,
)
from sluice.views import BatchView, CheckpointView, VersionView

REWARD_WINDOW = 5
"""Training steps over which the target reward is averaged."""


class RunHistory:
    """Everything durable about a run but the groups themselves; both the loop and the API read runs through it."""

    spec: RunSpec
    config_hash: str
    created_at: datetime

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.problem = ""
        """Why a record cannot be read, by this release at least; all else here is how the run stood before it."""
        self.state = RunState.QUEUED
        self.reason = "created"
        self.ends_as = RunState.STOPPED
        """The terminal state that a stopping run will have."""
        self.waits_for_data = False
        """Paused because the data set is missing or another one: goes on by itself."""
        self.generation_limit: int | None = None
        self.first_issue_at: datetime | None = None
        self.last_progress_at: datetime | None = None
        self.finished_at: datetime | None = None
        self.last_batch: Batch | None = None
        self.last_batch_at: datetime | None = None
        self.since_batch: list[Issue | Drop] = []
        self.next_n = 0
        self._issued_at: list[tuple[int, int]] = []
        """First issue number of each policy version at which groups were issued, with the version's number."""
        self.draws = Draws()
        self.batches: list[BatchView] = []
        self.fates = Fates()
        self.unreadable: dict[int, str] = {}
        """Why groups that are stored were dropped unread."""
        self.lineages = 0
        self.restarts = 0
        """Restarts of the trainer since the last checkpoint."""
        self.versions: list[VersionView] = []
        self.checkpoints: list[CheckpointView] = []
        self.data_manifest: dict[str, Any] = {}
        """What the run trains on, as recorded when it was created."""
        self._failure: tuple[int, str] | None = None
        """Lineage of the trainer that last said that training cannot go on, and why."""
        self._forgiven_lineage = 0
        """Whatever trainers up to this lineage said is settled: a person has decided how the run goes on."""
        self.version_number = -1
        """Highest number ever published; -1 before the first."""
        self.origin: Origin | None = None
        """The checkpoint of another run that this one was forked from."""

    @property
    def has_spec(self) -> bool:
        """Its first record, which says what run it is, can be read."""
        return "spec" in self.__dict__

    @property
    def first_step(self) -> int:
        """Training steps that were in the weights when the run began: its first batch has this index."""
        return self.origin.checkpoint.k if self.origin else 0

    @property
    def end_step(self) -> int:
        """One past the index of the last batch."""
        return self.first_step + len(self.batches)

    @property
    def training_steps(self) -> int:
        return max(self.version_number, self.first_step)

    @property
    def training_failed(self) -> str | None:
        """Why training cannot go on, if the trainer said so and nobody has decided about it since."""
        failed = self._failure is not None and self._failure[0] > self._forgiven_lineage
        return self._failure[1] if self._failure and failed else None

    @property
    def checkpointed(self) -> bool:
        """The newest checkpoint covers every batch."""
        return not self.batches or (bool(self.checkpoints) and self.checkpoints[-1].k >= self.end_step)

    def recent_reward(self) -> float | None:
        """Mean reward over all sampled groups of the last five training steps; None before there are five."""
        rewards = [b.reward_mean for b in self.batches[-REWARD_WINDOW:] if b.reward_mean is not None]
        return sum(rewards) / REWARD_WINDOW if len(rewards) == REWARD_WINDOW else None

    def version_of(self, n: int) -> int:
        """Policy version number at which group `n` was issued."""
        return self._issued_at[bisect_right(self._issued_at, n, key=itemgetter(0)) - 1][1]

    def fold_ledger(self, entry: Entry[LedgerRecord]) -> None:
        """Take the next LEDGER record."""
        match entry.record:
            case RunCreated(_, spec_json, config_hash, data_json, origin):
                self.spec, self.config_hash = parse_run_spec(json.loads(spec_json)), config_hash
                self.data_manifest, self.origin = json.loads(data_json or "{}"), origin
                self.created_at = entry.time
                if origin is not None:
                    self.reason = f"created from step {origin.checkpoint.k} of {origin.run_id}"
                self.generation_limit = self.spec.filter.max_generation_batches
            case Issue():
                self.first_issue_at = self.first_issue_at or entry.time
                self._fold_issue(entry.record)
                self.draws.take(entry.record)
                self.since_batch.append(entry.record)
            case Drop():
                self._fold_drop(entry.record)
            case Batch():
                self._fold_batch(entry.record, entry.time)
            case StateChange():
                self._fold_state(entry.record, entry.time)

    def fold_trainer(self, entry: Entry[TrainerRecord]) -> None:
        """Take the next TRAINER record."""
        match entry.record:
            case Lineage():
                self.lineages += 1
                self.restarts += self.lineages > 1
            case Version(version, uri, manifest_hash, chain):
                self.version_number = max(self.version_number, version.number)
                self.last_progress_at = entry.time
                self.versions.append(
                    VersionView(
                        version=str(version),
                        uri=uri,
                        manifest_hash=manifest_hash,
                        chain=chain,
                        published_at=entry.time,
                    )
                )
            case TrainingFailed(lineage, reason):
                self._failure = lineage, reason
            case Checkpoint(k, lineage, path, checksum, chain):
                self.restarts = 0
                self.checkpoints.append(
                    CheckpointView(
                        k=k, lineage=lineage, path=path, checksum=checksum, chain=chain, stored_at=entry.time
                    )
                )

    def _fold_issue(self, issue: Issue) -> None:
        self.next_n = issue.first + issue.count
        if not self._issued_at or self._issued_at[-1][1] != issue.version:
            self._issued_at.append((issue.first, issue.version))

    def _fold_drop(self, drop: Drop) -> None:
        for n in drop.groups:
            self.fates.drop(n, drop.reason)
        if drop.error:
            self.unreadable |= dict.fromkeys(drop.groups, drop.error)
        self.since_batch.append(drop)

    def _fold_state(self, change: StateChange, time: datetime) -> None:
        self.state, self.reason = change.state, change.reason
        fields = json.loads(change.fields_json or "{}")
        self.ends_as = RunState(fields.get("ends_as", self.ends_as))
        self.waits_for_data = fields.get("waits_for_data", False)
        self.generation_limit = fields.get("generation_limit", self.generation_limit)
        self._forgiven_lineage = fields.get("forgiven_lineage", self._forgiven_lineage)
        if change.state.terminal:
            self.finished_at = time

    def _fold_batch(self, batch: Batch, time: datetime) -> None:
        before = self.last_batch.tally if self.last_batch else Tally()
        began = self.first_issue_at or time
        since = self.last_batch_at or began
        self.batches.append(_batch_view(batch, before, (time - began).total_seconds(), (time - since).total_seconds()))
        self.last_batch_at = time
        self.fates.train((entry.n for entry in batch.groups), batch.k)
        for n, reason in batch.dropped:
            self.fates.drop(n, reason)
        self.last_batch, self.since_batch = batch, []
        self.last_progress_at = time


def _batch_view(batch: Batch, before: Tally, elapsed: float, filled_in: float) -> BatchView:
    """A batch as people see it: `elapsed` seconds after the first issued prompt, filled in `filled_in` seconds."""
    s = batch.sampled
    staleness = Counter(
        batch.k - min((r.oldest_version.number for r in entry.rollouts), default=entry.version)
        for entry in batch.groups
    )
    kept = batch.tally.kept_groups - before.kept_groups
    return BatchView(
        step=batch.k,
        reward_mean=s.reward_sum / s.rollouts if s.rollouts else None,
        acc_mean=s.acc_sum / s.rollouts if s.rollouts else None,
        keep_rate=kept / s.groups if s.groups else None,
        sampled_groups=s.groups,
        dropped=dict(Counter(str(reason) for _, reason in batch.dropped)),
        response_length_mean=s.length_sum / s.rollouts if s.rollouts else None,
        truncated_share=s.truncated / s.rollouts if s.rollouts else None,
        tokens=s.tokens,
        staleness={str(k): v for k, v in sorted(staleness.items())},
        version=batch.version,
        elapsed_seconds=elapsed,
        fill_seconds=filled_in,
        tokens_per_second=s.tokens / filled_in if filled_in > 0 else None,
    )
