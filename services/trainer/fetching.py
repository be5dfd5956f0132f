"""A rank's share of a batch: fetched by sequence, verified, and packed for each optimizer update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.trainer.assignment import make_responses, share_out, split_mini_batches
from services.trainer.bus import NatsThread
from services.trainer.packing import MicroBatch, PackingLimits, pack
from services.trainer.ranks import Ranks
from sluice.config import RunSpec
from sluice.errors import SluiceError
from sluice.transport.nats import Bus
from sluice.transport.queues import fetch_rollouts
from sluice.types import Batch, BatchGroup, Rollout


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank trains: its micro-batches of each update, and the prompt tokens of its rollouts as sampled."""

    mini_batches: tuple[tuple[MicroBatch, ...], ...]
    prompt_tokens: int

    @property
    def computed_tokens(self) -> int:
        return sum(m.size for micro_batches in self.mini_batches for m in micro_batches)


class Fetcher:
    """Fetches this rank's share of each batch, and agrees with the other ranks that all have theirs."""

    def __init__(self, nats: NatsThread, bus: Bus, ranks: Ranks, spec: RunSpec, limits: PackingLimits) -> None:
        self._nats, self._bus, self._ranks, self._spec, self._limits = nats, bus, ranks, spec, limits

    def fetch(self, batch: Batch) -> Share:
        """This rank's share, once every rank has fetched and verified its own.

        Raises:
            WireError: a rollout is gone, or is not the one that its group was scored on.
            TransientError: another rank failed.
        """
        failure: SluiceError | None = None
        share = Share((), 0)
        try:
            share = self._fetch(batch)
        except SluiceError as error:
            failure = error
        self._ranks.agree(failure)
        return share

    def _fetch(self, batch: Batch) -> Share:
        mine = plan_share(batch, self._spec, self._ranks.rank, self._ranks.world_size)
        rollouts = self._rollouts([group for groups in mine for group in groups])
        return assemble_share(mine, rollouts, self._spec, self._limits)

    def _rollouts(self, groups: Sequence[BatchGroup]) -> dict[int, list[Rollout]]:
        wanted = [(r.sequences, r.content_hash) for g in groups for r in g.rollouts]
        fetching = fetch_rollouts(self._bus, wanted)
        seconds = self._spec.deadlines.no_progress_seconds
        found = iter(self._nats.call(fetching, "rollouts", seconds, knob="deadlines.no_progress_seconds"))
        return {g.n: [next(found) for _ in g.rollouts] for g in groups}


def plan_share(batch: Batch, spec: RunSpec, rank: int, world_size: int) -> list[list[BatchGroup]]:
    """Which groups `rank` trains in which update: a pure function of the record, so all ranks agree on it."""
    return [share_out(groups, world_size)[rank] for groups in split_mini_batches(batch, spec)]


def assemble_share(
    plan: Sequence[Sequence[BatchGroup]],
    rollouts: Mapping[int, Sequence[Rollout]],
    spec: RunSpec,
    limits: PackingLimits,
) -> Share:
    """Pack a plan's groups, given their rollouts by issue number. Raises: WireError: they are not the group's."""
    updates = [tuple(pack([make_responses(g, rollouts[g.n], spec) for g in groups], limits)) for groups in plan]
    return Share(tuple(updates), sum(len(r.prompt_token_ids) for found in rollouts.values() for r in found))
