"""A rank's share of a batch: fetched by sequence, verified, and packed for each optimizer update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.trainer.assignment import make_responses, share_out, split_mini_batches
from services.trainer.bus import NatsThread
from services.trainer.packing import MicroBatch, PackingLimits, pack
from services.trainer.ranks import Ranks
from services.trainer.sequence import SequenceGroup
from sluice.config import RunSpec
from sluice.errors import SluiceError, WireError
from sluice.transport.nats import Bus
from sluice.transport.queues import fetch_rollouts
from sluice.types import Batch, BatchGroup, Rollout
from sluice.wire.codec import decode_rollout, encode_rollout


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank trains: its micro-batches of each update, and the prompt tokens of its rollouts as sampled."""

    mini_batches: tuple[tuple[MicroBatch, ...], ...]
    prompt_tokens: int

    @property
    def computed_tokens(self) -> int:
        return sum(m.size for micro_batches in self.mini_batches for m in micro_batches)


class Fetcher:
    """Fetches the share of this rank's replica of each batch, and agrees with the other ranks that all have theirs."""

    def __init__(self, nats: NatsThread, bus: Bus, ranks: Ranks, spec: RunSpec, limits: PackingLimits) -> None:
        self._nats, self._bus, self._ranks, self._spec, self._limits = nats, bus, ranks, spec, limits

    def fetch(self, batch: Batch) -> Share:
        """This rank's share, once every rank has fetched and verified its own.

        Raises:
            WireError: a rollout is gone, or is not the one that its group was scored on.
            TransientError: another rank failed.
        """
        failure: SluiceError | None = None
        share, rollouts = Share((), 0), {}
        plan = plan_share(batch, self._spec, self._ranks.replica, self._ranks.replicas)
        try:
            if self._ranks.leads:
                rollouts = self._rollouts([group for groups in plan for group in groups])
                share = assemble_share(plan, rollouts, self._spec, self._limits)
        except WireError as error:
            failure = WireError(f"batch {batch.k}: {error}")
        except SluiceError as error:
            failure = error
        self._ranks.agree(failure)
        if self._ranks.sequence is not None:
            rollouts = _shared(rollouts, self._ranks.sequence)
            share = share if self._ranks.leads else assemble_share(plan, rollouts, self._spec, self._limits)
        return share

    def _rollouts(self, groups: Sequence[BatchGroup]) -> dict[int, list[Rollout]]:
        fetching = fetch_rollouts(self._bus, [summary for g in groups for summary in g.rollouts])
        seconds = self._spec.deadlines.no_progress_seconds
        found = iter(self._nats.call(fetching, "rollouts", seconds, knob="deadlines.no_progress_seconds"))
        return {g.n: [next(found) for _ in g.rollouts] for g in groups}


def _shared(rollouts: Mapping[int, Sequence[Rollout]], sequence: SequenceGroup) -> dict[int, list[Rollout]]:
    """Those of the first rank of a replica, on all of its ranks: bulk data leaves the bus once."""
    encoded = sequence.share({n: [encode_rollout(rollout) for rollout in found] for n, found in rollouts.items()})
    return {n: [decode_rollout(data) for data in found] for n, found in encoded.items()}


def plan_share(batch: Batch, spec: RunSpec, replica: int, replicas: int) -> list[list[BatchGroup]]:
    """Which groups `replica` trains in which update: a pure function of the record, so all ranks agree on it."""
    return [share_out(groups, replicas)[replica] for groups in split_mini_batches(batch, spec)]


def assemble_share(
    plan: Sequence[Sequence[BatchGroup]],
    rollouts: Mapping[int, Sequence[Rollout]],
    spec: RunSpec,
    limits: PackingLimits,
) -> Share:
    """Pack a plan's groups, given their rollouts by issue number. Raises: WireError: they are not the group's."""
    updates = [tuple(pack([make_responses(g, rollouts[g.n], spec) for g in groups], limits)) for groups in plan]
    return Share(tuple(updates), sum(len(r.prompt_token_ids) for found in rollouts.values() for r in found))
