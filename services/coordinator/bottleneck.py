"""Who waits for whom: one verdict from the shares of time that were measured, and the knob that would help.

The part that holds a run back is the one that works while others wait for it. So the verdict begins with who waits: the
trainer for a batch, or workers for prompts. Then it looks for what the other side does instead of its proper work
(generating, training), because time that is lost to something else is won back more cheaply than by more machines.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from sluice.views import BottleneckView

NOTABLE = 0.2
"""A smaller share of somebody's time is not worth turning a knob for."""
FEW_KEPT = 0.25
"""Below this keep rate more than three groups are generated for one that trains."""
ALONE = 1.0
"""Groups in flight a worker, up to which a further worker would have nothing to do."""


class Part(StrEnum):
    """What can hold a run back; BALANCED: nothing notably does."""

    ROLLOUTS = "rollouts"
    TRAINER = "trainer"
    REWARD = "reward"
    WEIGHT_SYNC = "weight_sync"
    FILTER = "filter"
    STALENESS = "staleness"
    CHECKPOINT = "checkpoint"
    BALANCED = "balanced"


@dataclass(frozen=True, slots=True)
class Shares:
    """What was measured over a window. Shares of time are of one side's time, between 0 and 1.

    The trainer's four do not add up to 1: loading is left out. Nor do the workers' four: storing is.
    """

    trainer_waits: float
    """For the next batch."""
    trainer_trains: float
    trainer_publishes: float
    trainer_checkpoints: float
    rollouts_generate: float
    rollouts_idle: float
    """Without any group."""
    rollouts_reward: float
    """Nothing is generated, and groups wait for their verdicts."""
    rollouts_weight_sync: float
    """The engine is paused for new weights, or all groups wait for them."""
    slots_used: float
    """Groups in flight of those that the workers would take."""
    keep_rate: float
    """Kept groups of scored groups; 1 when none was scored."""
    groups_per_worker: float
    """Groups in flight; not a share."""

    def shares(self) -> dict[str, float]:
        """All that lie between 0 and 1, by name."""
        return {name: value for name, value in asdict(self).items() if name != "groups_per_worker"}


def find_bottleneck(s: Shares) -> Part:
    """The part that holds the run back."""
    if max(s.trainer_waits, s.rollouts_idle) < NOTABLE:
        return _largest(
            {
                Part.REWARD: s.rollouts_reward,
                Part.WEIGHT_SYNC: max(s.rollouts_weight_sync, s.trainer_publishes),
                Part.CHECKPOINT: s.trainer_checkpoints,
            },
            otherwise=Part.BALANCED,
        )
    if min(s.trainer_waits, s.rollouts_idle) >= NOTABLE:
        return Part.STALENESS
    if s.rollouts_idle > s.trainer_waits:
        on_the_side = {Part.WEIGHT_SYNC: s.trainer_publishes, Part.CHECKPOINT: s.trainer_checkpoints}
        return _largest(on_the_side, otherwise=Part.TRAINER)
    if s.keep_rate < FEW_KEPT:
        return Part.FILTER
    lost = {Part.REWARD: s.rollouts_reward, Part.WEIGHT_SYNC: s.rollouts_weight_sync}
    return _largest(lost, otherwise=Part.STALENESS if s.groups_per_worker <= ALONE else Part.ROLLOUTS)


def describe(s: Shares, seconds: float) -> BottleneckView:
    """The verdict over a window of so many seconds, in words."""
    part = find_bottleneck(s)
    return BottleneckView(
        part=str(part),
        text=TEXTS[part].format(**s.shares()),
        knob=KNOBS[part],
        shares={name: round(value, 3) for name, value in s.shares().items()},
        window_seconds=round(seconds, 1),
    )


def _largest(shares: dict[Part, float], otherwise: Part) -> Part:
    part = max(shares, key=lambda part: shares[part])
    return part if shares[part] >= NOTABLE else otherwise


TEXTS = {
    Part.ROLLOUTS: "the trainer waits {trainer_waits:.0%} of its time for rollouts, which generate "
    "{rollouts_generate:.0%} of theirs",
    Part.TRAINER: "rollouts are idle {rollouts_idle:.0%} of their time: they wait for the trainer, which trains "
    "{trainer_trains:.0%} of its",
    Part.REWARD: "rollouts wait {rollouts_reward:.0%} of their time for nothing but verdicts, the trainer "
    "{trainer_waits:.0%} of its for rollouts",
    Part.WEIGHT_SYNC: "new weights take {trainer_publishes:.0%} of the trainer's time and {rollouts_weight_sync:.0%} "
    "of the rollouts'",
    Part.FILTER: "the trainer waits {trainer_waits:.0%} of its time, and only {keep_rate:.0%} of the scored groups are "
    "kept",
    Part.STALENESS: "too few groups may be in flight: the trainer waits {trainer_waits:.0%} of its time and rollouts "
    "are idle {rollouts_idle:.0%} of theirs",
    Part.CHECKPOINT: "checkpoints take {trainer_checkpoints:.0%} of the trainer's time",
    Part.BALANCED: "nobody waits much: the trainer {trainer_waits:.0%} of its time, rollouts {rollouts_idle:.0%}",
}
"""The verdict in words, with the shares that led to it."""

KNOBS = {
    Part.ROLLOUTS: "more rollout workers (`sluice up --workers`, replicas), or a smaller `rollout.max_response_length`",
    Part.TRAINER: "more trainer ranks (`sluice up --trainer-ranks`), or a larger `trainer.max_tokens_per_micro_batch`",
    Part.REWARD: "more reward replicas (`SLUICE_REWARD_ADDRESSES`) or `SLUICE_REWARD_WORKERS`; a larger "
    "`SLUICE_MAX_GROUPS_IN_FLIGHT` hides their latency",
    Part.WEIGHT_SYNC: "`weights.update`, `weights.transport`, or fewer and larger steps (`trainer.prompts_per_step`)",
    Part.FILTER: "prompts of a fitting difficulty (`data.train_files`), skipping those that teach nothing "
    "(`curriculum.skip_all_correct_after`, `curriculum.skip_all_wrong_after`), or a larger `rollout.group_size`",
    Part.STALENESS: "a larger `asynchrony.max_staleness`; against stragglers `asynchrony.stragglers` and "
    "`asynchrony.overissue`",
    Part.CHECKPOINT: "a larger `checkpoint.interval`",
    Part.BALANCED: "",
}
"""What would help, by the part that holds the run back."""
