"""LEDGER and TRAINER records to bytes and back; the rest of the wire is in `codec`."""

from __future__ import annotations

from sluice.errors import WireError
from sluice.types import (
    Batch,
    BatchGroup,
    Checkpoint,
    Claim,
    Drop,
    DropReason,
    Floors,
    Issue,
    LedgerRecord,
    Lineage,
    Origin,
    RunCreated,
    RunState,
    SamplingStats,
    StateChange,
    Tally,
    TrainerRecord,
    TrainingFailed,
    Version,
)
from sluice.wire.codec import FORMAT, parse, summary_from_wire, summary_to_wire, version_from_wire, version_to_wire
from sluice.wire.v1 import ledger_pb2 as pb

SHARED_MESSAGES, SKIPS_AND_ORIGINS = 3, 2
LEDGER_FORMAT = max(SHARED_MESSAGES, SKIPS_AND_ORIGINS)
"""Format 3 is that of batches whose rollouts share messages; format 2 of records in which draws are skipped, or a run
starts from a checkpoint. A program that knew no such thing would train, or issue, something else."""


def encode_ledger(record: LedgerRecord) -> bytes:
    message = pb.LedgerRecord(format=_format_of(record))
    match record:
        case RunCreated():
            message.run_created.CopyFrom(_created(record))
        case Claim(coordinator):
            message.claim.CopyFrom(pb.Claim(coordinator=coordinator))
        case Issue():
            message.issue.CopyFrom(_issue(record))
        case Drop(groups, reason, error):
            message.drop.CopyFrom(pb.Drop(groups=groups, reason=reason, error=error))
        case Batch():
            message.batch.CopyFrom(_batch(record))
        case StateChange(state, reason, fields_json):
            message.state_change.CopyFrom(pb.StateChange(state=state, reason=reason, fields_json=fields_json))
    return message.SerializeToString()


def decode_ledger(payload: bytes) -> LedgerRecord:
    """Raises: WireError: not a ledger record, or one of a kind this program does not know."""
    m = parse(pb.LedgerRecord, payload, newest=LEDGER_FORMAT)
    try:
        match m.WhichOneof("record"):
            case "run_created":
                return _created_from(m.run_created)
            case "claim":
                return Claim(m.claim.coordinator)
            case "issue":
                return _issue_from(m.issue)
            case "drop":
                return Drop(tuple(m.drop.groups), DropReason(m.drop.reason), m.drop.error)
            case "batch":
                return _batch_from(m.batch)
            case "state_change":
                c = m.state_change
                return StateChange(RunState(c.state), c.reason, c.fields_json)
    except ValueError as error:
        raise WireError(f"ledger record: {error}") from None
    raise WireError("ledger record of a kind this program does not know")


def encode_trainer(record: TrainerRecord) -> bytes:
    message = pb.TrainerRecord(format=FORMAT)
    match record:
        case Lineage(lineage, trainer, restored):
            message.lineage.CopyFrom(pb.Lineage(lineage=lineage, trainer=trainer, restored=restored))
        case Version(version, uri, manifest_hash, chain):
            message.version.CopyFrom(
                pb.Version(version=version_to_wire(version), uri=uri, manifest_hash=manifest_hash, chain=chain)
            )
        case Checkpoint():
            message.checkpoint.CopyFrom(_checkpoint(record))
        case TrainingFailed(lineage, reason):
            message.training_failed.CopyFrom(pb.TrainingFailed(lineage=lineage, reason=reason))
    return message.SerializeToString()


def decode_trainer(payload: bytes) -> TrainerRecord:
    """Raises: WireError."""
    m = parse(pb.TrainerRecord, payload)
    match m.WhichOneof("record"):
        case "lineage":
            return Lineage(m.lineage.lineage, m.lineage.trainer, m.lineage.restored)
        case "version":
            v = m.version
            return Version(version_from_wire(v.version), v.uri, v.manifest_hash, v.chain)
        case "checkpoint":
            return _checkpoint_from(m.checkpoint)
        case "training_failed":
            return TrainingFailed(m.training_failed.lineage, m.training_failed.reason)
    raise WireError("trainer record of a kind this program does not know")


def _format_of(record: LedgerRecord) -> int:
    """The oldest format that says all that the record says."""
    match record:
        case Batch(groups=groups) if any(rollout.nbytes for group in groups for rollout in group.rollouts):
            return SHARED_MESSAGES
        case RunCreated(origin=Origin()) | Issue(skipped=(_, *_)) | Batch(skipped=(_, *_)):
            return SKIPS_AND_ORIGINS
        case _:
            return FORMAT


def _created(record: RunCreated) -> pb.RunCreated:
    message = pb.RunCreated(
        run_id=record.run_id, spec_json=record.spec_json, config_hash=record.config_hash, data_json=record.data_json
    )
    if (o := record.origin) is not None:
        origin = pb.Origin(run_id=o.run_id, checkpoint=_checkpoint(o.checkpoint), again=o.again, next_draw=o.next_draw)
        message.origin.CopyFrom(origin)
    return message


def _created_from(m: pb.RunCreated) -> RunCreated:
    o = m.origin
    origin = Origin(o.run_id, _checkpoint_from(o.checkpoint), tuple(o.again), o.next_draw)
    return RunCreated(
        m.run_id, m.spec_json, m.config_hash, m.data_json, origin=origin if m.HasField("origin") else None
    )


def _checkpoint(c: Checkpoint) -> pb.Checkpoint:
    return pb.Checkpoint(k=c.k, lineage=c.lineage, path=c.path, checksum=c.checksum, chain=c.chain)


def _checkpoint_from(m: pb.Checkpoint) -> Checkpoint:
    return Checkpoint(m.k, m.lineage, m.path, m.checksum, m.chain)


def _issue(issue: Issue) -> pb.Issue:
    return pb.Issue(
        first=issue.first,
        count=issue.count,
        version=issue.version,
        floors=_floors(issue.floors),
        skipped=issue.skipped,
    )


def _issue_from(m: pb.Issue) -> Issue:
    return Issue(m.first, m.count, m.version, Floors(m.floors.groups, m.floors.rollouts), tuple(m.skipped))


def _floors(floors: Floors) -> pb.Floors:
    return pb.Floors(groups=floors.groups, rollouts=floors.rollouts)


def _batch(batch: Batch) -> pb.Batch:
    t, s = batch.tally, batch.sampled
    return pb.Batch(
        k=batch.k,
        groups=[
            pb.BatchGroup(
                n=g.n,
                attempt=g.attempt,
                version=g.version,
                groups_sequence=g.groups_sequence,
                rollouts=[summary_to_wire(r) for r in g.rollouts],
            )
            for g in batch.groups
        ],
        dropped=[pb.DroppedGroup(n=n, reason=reason) for n, reason in batch.dropped],
        next_n=batch.next_n,
        live=[_issue(i) for i in batch.live],
        floors=_floors(batch.floors),
        tally=pb.Tally(
            issued=t.issued,
            trained=t.trained,
            dropped={str(reason): count for reason, count in t.dropped.items()},
            scored_groups=t.scored_groups,
            kept_groups=t.kept_groups,
        ),
        sampled=pb.SamplingStats(
            groups=s.groups,
            rollouts=s.rollouts,
            reward_sum=s.reward_sum,
            acc_sum=s.acc_sum,
            length_sum=s.length_sum,
            truncated=s.truncated,
            tokens=s.tokens,
        ),
        version=batch.version,
        groups_seen=batch.groups_seen,
        skipped=batch.skipped,
    )


def _batch_from(m: pb.Batch) -> Batch:
    t, s = m.tally, m.sampled
    return Batch(
        k=m.k,
        groups=tuple(
            BatchGroup(g.n, g.attempt, g.version, g.groups_sequence, tuple(summary_from_wire(r) for r in g.rollouts))
            for g in m.groups
        ),
        dropped=tuple((d.n, DropReason(d.reason)) for d in m.dropped),
        next_n=m.next_n,
        live=tuple(_issue_from(i) for i in m.live),
        floors=Floors(m.floors.groups, m.floors.rollouts),
        tally=Tally(
            t.issued, t.trained, {DropReason(r): c for r, c in t.dropped.items()}, t.scored_groups, t.kept_groups
        ),
        sampled=SamplingStats(s.groups, s.rollouts, s.reward_sum, s.acc_sum, s.length_sum, s.truncated, s.tokens),
        version=m.version,
        groups_seen=m.groups_seen,
        skipped=m.skipped,
    )
