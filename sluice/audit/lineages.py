"""TRAINER counted again: which batches are in which weights, by recomputing the hash chain from the BATCH records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from sluice.audit.findings import Fault, Finding
from sluice.audit.reading import Stored
from sluice.wire.v1.ledger_pb2 import Batch, Checkpoint, Floors, Lineage, RunCreated, TrainerRecord, Version


def first_link(created: RunCreated) -> str:
    """The link of a run that has trained nothing: h(0), or of a fork h(k), which names the run it goes on from too."""
    parent = bytes.fromhex(created.origin.checkpoint.chain)
    return hashlib.blake2b(parent + created.config_hash.encode(), digest_size=32).hexdigest()


def next_link(chain: str, batch: Batch) -> str:
    """h(k+1) from h(k) and batch k: every group's number, then the content hashes of its rollouts, in order."""
    digest = hashlib.blake2b(digest_size=32)
    for group in batch.groups:
        digest.update(group.n.to_bytes(8, "big"))
        for rollout in group.rollouts:
            digest.update(rollout.content_hash)
    return hashlib.blake2b(bytes.fromhex(chain) + digest.digest(), digest_size=32).hexdigest()


class Weights:
    """The policy versions of a run. Each link is checked against the one before it, so one forgery is one finding."""

    def __init__(self, created: RunCreated, batches: Sequence[Batch]) -> None:
        self.findings: list[Finding] = []
        self.checkpoints: list[Checkpoint] = []
        self.published: set[tuple[int, int]] = set()
        """(number, lineage) of every version announced."""
        self.highest = -1
        """Highest version number ever announced."""
        self.lineage = 0
        self.first_step = created.origin.checkpoint.k
        """Index of the first batch."""
        self.trained = self.first_step
        """Batches below this are in the newest lineage's newest weights, each once."""
        self.twice: set[int] = set()
        """Groups of batches that a hash chain holds twice."""
        self.purgeable = 0
        """Messages up to the floors of batch `purgeable` - 1 may be gone."""
        self._batches = batches
        self._start = first_link(created)
        self._links: dict[int, str] = {self.first_step: self._start}
        self._announced = False

    @property
    def covered(self) -> int:
        """Batches below this are in the newest checkpoint."""
        return self.checkpoints[-1].k if self.checkpoints else self.first_step

    @property
    def end(self) -> int:
        """One past the index of the last batch."""
        return self.first_step + len(self._batches)

    def take(self, entry: Stored[TrainerRecord]) -> None:
        record = entry.message
        match record.WhichOneof("record"):
            case "lineage":
                self._take_lineage(record.lineage)
            case "version":
                self._take_version(record.version)
            case "checkpoint":
                self._take_checkpoint(record.checkpoint)
            case "training_failed":
                pass  # made no weights: the run ends as failed
            case _:
                self._find(Fault.UNREADABLE, f"TRAINER sequence {entry.sequence} is of no known kind")

    def _take_lineage(self, lineage: Lineage) -> None:
        if lineage.lineage != self.lineage + 1:
            self._find(Fault.LINEAGE, f"lineage {lineage.lineage} follows lineage {self.lineage}")
        self.lineage, self._announced = lineage.lineage, False
        self.trained = lineage.restored
        restored = [c for c in self.checkpoints if c.k == lineage.restored]
        if lineage.restored != self.first_step and not restored:
            self._find(
                Fault.LINEAGE, f"lineage {lineage.lineage} restores checkpoint {lineage.restored}, which has no record"
            )
        chain = restored[-1].chain if restored else self._own_link(lineage.restored)
        self._links = {self.first_step: self._start} | {lineage.restored: chain}

    def _take_version(self, version: Version) -> None:
        number, lineage = version.version.number, version.version.lineage
        name = f"v{number}.{lineage}"
        if lineage != self.lineage:
            self._find(Fault.LINEAGE, f"{name} was published while lineage {self.lineage} had taken over")
            return
        due = self.trained + self._announced
        if number != due:
            self._find(Fault.LINEAGE, f"{name} was published where v{due}.{lineage} was due")
        if number > self.end:
            self._find(Fault.CHAIN, f"{name} stands for {number} batches, the ledger has {self.end}")
        elif (expected := self._expected(number)) != version.chain:
            self._find(*self._explain(name, number, version.chain, expected))
        self._links[number] = version.chain
        self.trained, self._announced = number, True
        self.published.add((number, lineage))
        self.highest = max(self.highest, number)

    def _take_checkpoint(self, checkpoint: Checkpoint) -> None:
        name = f"checkpoint {checkpoint.k}.{checkpoint.lineage}"
        if checkpoint.lineage != self.lineage:
            self._find(Fault.LINEAGE, f"{name} was recorded while lineage {self.lineage} had taken over")
        elif checkpoint.k > self.trained:
            self._find(Fault.LINEAGE, f"{name} was recorded while the newest version was number {self.trained}")
        elif (expected := self._expected(checkpoint.k)) != checkpoint.chain:
            self._find(*self._explain(name, checkpoint.k, checkpoint.chain, expected))
        self.purgeable = max([self.purgeable, *(c.k for c in self.checkpoints)])
        self.checkpoints.append(checkpoint)

    def _expected(self, number: int) -> str:
        """The link at `number`, carried on from the newest link of this lineage below it."""
        known = max(n for n in self._links if n < number) if number not in self._links else number
        chain = self._links[known]
        for batch in self._between(known, number):
            chain = next_link(chain, batch)
        return chain

    def _own_link(self, number: int) -> str:
        chain = self._start
        for batch in self._between(self.first_step, number):
            chain = next_link(chain, batch)
        return chain

    def _between(self, begin: int, end: int) -> Sequence[Batch]:
        """Batches with an index of at least `begin` and below `end`."""
        return self._batches[begin - self.first_step : end - self.first_step]

    def _explain(self, name: str, number: int, chain: str, expected: str) -> tuple[Fault, str]:
        """A batch trained once too often, or in another's place, can be told from an unknown chain."""
        before = self._expected(number - 1) if number > self.first_step else self._start
        for batch in self._between(self.first_step, number):
            if chain in (next_link(expected, batch), next_link(before, batch)):
                self.twice.update(group.n for group in batch.groups)
                return Fault.TRAINED_TWICE, f"{name} has the hash chain of training batch {batch.k} twice"
        return Fault.CHAIN, f"{name} has the hash chain {chain:.16}…, its batches give {expected:.16}…"

    def _find(self, kind: Fault, detail: str) -> None:
        self.findings.append(Finding(kind, detail))


def follow_weights(created: RunCreated, batches: Sequence[Batch], trainer: Iterable[Stored[TrainerRecord]]) -> Weights:
    weights = Weights(created, batches)
    for entry in trainer:
        weights.take(entry)
    return weights


def purged_floors(weights: Weights, batches: Sequence[Batch]) -> Floors:
    """Sequences up to which GROUPS and ROLLOUTS may have been purged: the floors in the batch before a checkpoint."""
    if weights.first_step < weights.purgeable <= weights.end:
        return batches[weights.purgeable - weights.first_step - 1].floors
    return Floors()
