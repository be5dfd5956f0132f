"""What a run's spec asks of the filter queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from sluice.config import FilterConfig, RunSpec
from sluice.types import Origin
from sluice.wire.payload import MAX_MESSAGE_BYTES
from sluice.wire.room import BYTES_PER_TOKEN, rollout_room

BATCH_BYTES_PER_ROLLOUT = 100
"""Of a rollout in a BATCH record: hash, outcomes, length, versions, place in its message; 93 with large numbers."""
BATCH_BYTES_PER_PART = 6
BATCH_BYTES_PER_GROUP = 42
BATCH_BYTES_PER_LIVE_GROUP = 40
"""Of a group that stays live, when no neighbour was issued with it."""
BATCH_BYTES_PER_DROP = 22
DROPS_PER_GROUP = 9
"""A keep rate of one in ten; below it a record may outgrow `batch_room`."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The part of a run's spec that the queue obeys, and how many groups the data can give (None: no end)."""

    batch_size: int
    max_staleness: int
    total_steps: int
    filter: FilterConfig = field(default_factory=FilterConfig)
    drop_stragglers: bool = False
    overissue: int = 0
    train_last: bool = True
    data_limit: int | None = None
    first_step: int = 0
    """Index of the run's first batch, and number of the policy version that it starts from."""

    @classmethod
    def of(cls, spec: RunSpec, data_size: int, origin: Origin | None = None) -> Self:
        epochs = spec.data.total_epochs
        return cls(
            batch_size=spec.trainer.prompts_per_step,
            max_staleness=spec.asynchrony.max_staleness,
            total_steps=spec.trainer.total_steps,
            filter=spec.filter,
            drop_stragglers=spec.asynchrony.stragglers == "drop",
            overissue=spec.asynchrony.overissue,
            train_last=spec.trainer.last_batch == "train",
            data_limit=None if epochs is None else _draws_left(epochs * data_size, origin),
            first_step=origin.checkpoint.k if origin else 0,
        )

    @property
    def rounds(self) -> bool:
        return self.filter.mode == "rounds"

    @property
    def gen_batch_size(self) -> int:
        return self.filter.gen_batch_size or self.batch_size


def _draws_left(draws: int, origin: Origin | None) -> int:
    """Draws that the data order has for a run, of `draws` in all."""
    return draws if origin is None else len(origin.again) + max(0, draws - origin.next_draw)


def rollouts_room(spec: RunSpec) -> int:
    """Bytes that ROLLOUTS must hold so that a run never waits for room that only its own checkpoint could make.

    Between a checkpoint and the purge that the next one allows, (2η + 3 + 2 · checkpoint interval) · B groups are
    stored; each rollout is taken at its longest.
    """
    batches = 2 * spec.asynchrony.max_staleness + 3 + 2 * spec.checkpoint.interval
    return batches * spec.trainer.prompts_per_step * spec.rollout.group_size * rollout_room(spec)


def batch_room(spec: RunSpec) -> int:
    """Bytes that a BATCH record may come to: it is one message, however many groups a training step has."""
    tokens = spec.data.max_prompt_length + spec.rollout.max_response_length
    parts = -(-tokens * BYTES_PER_TOKEN // MAX_MESSAGE_BYTES)
    rollouts = spec.rollout.group_size * (BATCH_BYTES_PER_ROLLOUT + parts * BATCH_BYTES_PER_PART)
    live = spec.asynchrony.max_staleness * BATCH_BYTES_PER_LIVE_GROUP
    dropped = DROPS_PER_GROUP * BATCH_BYTES_PER_DROP
    return spec.trainer.prompts_per_step * (BATCH_BYTES_PER_GROUP + rollouts + live + dropped)
