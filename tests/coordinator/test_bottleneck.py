"""Who waits for whom: the verdict over measured shares, and how the shares of a window come about."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.bottleneck import FEW_KEPT, KNOBS, NOTABLE, TEXTS, Part, Shares, describe, find_bottleneck
from services.coordinator.meter import MARK_SECONDS, MIN_SECONDS, PATIENCE_SECONDS, WINDOW_MARKS, Meter
from services.coordinator.staff import Staff, TrainerBeat
from sluice.config import RunSpec
from sluice.types import Tally
from sluice.views import WorkerView
from tests.coordinator.stage import ROOT

BUSY = Shares(
    trainer_waits=0.05,
    trainer_trains=0.85,
    trainer_publishes=0.05,
    trainer_checkpoints=0.05,
    rollouts_generate=0.85,
    rollouts_idle=0.05,
    rollouts_reward=0.05,
    rollouts_weight_sync=0.05,
    slots_used=0.9,
    keep_rate=0.6,
    groups_per_worker=20.0,
)
"""Nobody waits much for anybody."""
SHARE = st.floats(0.0, 1.0)
ANY = st.builds(Shares, *[SHARE] * 10, st.floats(0.0, 100.0))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, Part.BALANCED),
        ({"trainer_waits": 0.6}, Part.ROLLOUTS),
        ({"trainer_waits": 0.6, "rollouts_idle": 0.19}, Part.ROLLOUTS),
        ({"rollouts_idle": 0.6}, Part.TRAINER),
        ({"trainer_waits": 0.6, "rollouts_reward": 0.5}, Part.REWARD),
        ({"rollouts_reward": 0.5}, Part.REWARD),
        ({"trainer_waits": 0.6, "rollouts_weight_sync": 0.4}, Part.WEIGHT_SYNC),
        ({"trainer_waits": 0.6, "rollouts_weight_sync": 0.4, "rollouts_reward": 0.5}, Part.REWARD),
        ({"rollouts_idle": 0.6, "trainer_publishes": 0.4}, Part.WEIGHT_SYNC),
        ({"trainer_publishes": 0.4}, Part.WEIGHT_SYNC),
        ({"rollouts_idle": 0.6, "trainer_checkpoints": 0.4}, Part.CHECKPOINT),
        ({"trainer_checkpoints": 0.4}, Part.CHECKPOINT),
        ({"trainer_waits": 0.6, "keep_rate": 0.1}, Part.FILTER),
        ({"keep_rate": 0.1}, Part.BALANCED),
        ({"trainer_waits": 0.5, "rollouts_idle": 0.5}, Part.STALENESS),
        ({"trainer_waits": 0.6, "groups_per_worker": 0.7}, Part.STALENESS),
    ],
)
def test_the_verdict_names_what_the_others_wait_for(changes: dict[str, float], part: Part) -> None:
    assert find_bottleneck(replace(BUSY, **changes)) is part


@given(ANY)
def test_nothing_is_blamed_without_somebody_who_loses_a_notable_share_of_its_time(shares: Shares) -> None:
    lost = (
        shares.trainer_waits,
        shares.rollouts_idle,
        shares.rollouts_reward,
        shares.rollouts_weight_sync,
        shares.trainer_publishes,
        shares.trainer_checkpoints,
    )
    assert (find_bottleneck(shares) is Part.BALANCED) == (max(lost) < NOTABLE)


@given(ANY)
def test_whoever_waits_is_not_blamed_for_it(shares: Shares) -> None:
    part = find_bottleneck(shares)
    if part is Part.TRAINER:
        assert shares.rollouts_idle >= NOTABLE > shares.trainer_waits
    if part in (Part.ROLLOUTS, Part.FILTER):
        assert shares.trainer_waits >= NOTABLE > shares.rollouts_idle
    if part is Part.FILTER:
        assert shares.keep_rate < FEW_KEPT


@given(ANY, st.floats(0.0, 1.0))
def test_a_run_is_not_held_back_by_what_would_wait_even_longer(shares: Shares, more: float) -> None:
    """If the trainer waits longer while all else is the same, it is not the trainer that holds the run back."""
    waiting = replace(shares, trainer_waits=max(shares.trainer_waits, more))
    if find_bottleneck(shares) is not Part.TRAINER:
        assert find_bottleneck(waiting) is not Part.TRAINER


@given(ANY)
def test_the_words_and_shares_of_a_verdict_are_complete(shares: Shares) -> None:
    view = describe(shares, 31.26)
    assert view.part == find_bottleneck(shares)
    assert view.window_seconds == 31.3
    assert "{" not in view.text
    assert bool(view.knob) == (view.part != Part.BALANCED)
    assert view.shares.keys() == shares.shares().keys()


def test_every_part_has_words_and_a_knob() -> None:
    assert set(TEXTS) == set(KNOBS) == set(Part)


def test_the_knobs_that_a_verdict_names_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from documentation.deployment import variables

    fields = {
        f"{section}.{name}"
        for section, field in RunSpec.model_fields.items()
        for name in getattr(field.annotation, "model_fields", {})
    }
    environment = {variable.name for variable in variables()}
    helped = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "up", "--help"], capture_output=True, text=True, check=True
    )
    flags = {f"sluice up {flag}" for flag in re.findall(r"--[a-z-]+", helped.stdout)}
    named = {knob for text in KNOBS.values() for knob in re.findall(r"`([^`]+)`", text)}
    assert len(named) > 10
    assert named - fields - environment - flags == set()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Crew:
    """A trainer and workers whose seconds are added to by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.meter = Meter(self.clock)
        self.trainer = TrainerBeat("t1", {"wait": 0.0})
        self.workers: dict[str, dict[str, float]] = {"w1": {"idle": 0.0}}

    def pass_time(self, seconds: float, trainer: str, worker: str, running: bool = True) -> None:
        """Everybody does one thing for so long, beat by beat."""
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            self.trainer = TrainerBeat(self.trainer.name, _plus(self.trainer.seconds, trainer))
            self.workers = {name: _plus(told, worker) for name, told in self.workers.items()}
            self.beat(running)

    def beat(self, running: bool = True) -> None:
        workers = tuple(
            WorkerView(name=name, in_flight=3, slots=4, seconds=told) for name, told in self.workers.items()
        )
        self.meter.beat(Staff(workers, self.trainer), Tally(scored_groups=8, kept_groups=4), running)

    def shares(self) -> Shares:
        window = self.meter.window()
        assert window is not None
        return window[0]


def _plus(told: Mapping[str, float], doing: str) -> dict[str, float]:
    return {**told, doing: told.get(doing, 0.0) + 1.0}


def test_shares_are_of_the_time_since_a_batch_and_add_up_to_what_was_done() -> None:
    crew = Crew()
    crew.beat()
    crew.pass_time(50, "load", "weight_sync")  # before the first batch: the run starts
    crew.meter.mark()
    crew.pass_time(3, "wait", "generate")
    crew.pass_time(6, "train", "generate")
    crew.pass_time(1, "publish", "idle")
    crew.meter.mark()
    shares = crew.shares()
    assert shares.trainer_waits == pytest.approx(0.3)
    assert shares.trainer_trains == pytest.approx(0.6)
    assert shares.trainer_publishes == pytest.approx(0.1)
    assert (shares.rollouts_generate, shares.rollouts_idle) == pytest.approx((0.9, 0.1))
    assert (shares.slots_used, shares.groups_per_worker) == pytest.approx((0.75, 3.0))


def test_nothing_is_said_before_a_second_batch_or_a_minute() -> None:
    crew = Crew()
    crew.beat()
    crew.pass_time(30, "wait", "generate")
    assert crew.meter.window() is None
    crew.meter.mark()
    crew.pass_time(MIN_SECONDS + 1, "wait", "generate")
    assert crew.meter.window() is None
    crew.pass_time(PATIENCE_SECONDS, "wait", "generate")
    assert crew.shares().trainer_waits == 1.0


def test_the_window_moves_along_with_the_batches() -> None:
    crew = Crew()
    crew.beat()
    for _ in range(WINDOW_MARKS + 1):
        crew.meter.mark()
        crew.pass_time(MARK_SECONDS, "wait", "generate")
    for _ in range(WINDOW_MARKS):
        crew.meter.mark()
        crew.pass_time(MARK_SECONDS, "train", "idle")
    window = crew.meter.window()
    assert window is not None
    assert window[1] == pytest.approx(WINDOW_MARKS * MARK_SECONDS)
    assert (window[0].trainer_waits, window[0].rollouts_idle) == (0.0, 1.0)


def test_a_pause_counts_for_nobody() -> None:
    crew = Crew()
    crew.beat()
    crew.meter.mark()
    crew.pass_time(10, "train", "generate")
    crew.pass_time(500, "wait", "idle", running=False)
    crew.pass_time(10, "train", "generate")
    crew.meter.mark()
    shares = crew.shares()
    assert (shares.trainer_trains, shares.rollouts_generate) == (1.0, 1.0)


def test_a_restart_a_newcomer_and_a_leaver_change_only_whose_time_is_measured() -> None:
    crew = Crew()
    crew.beat()
    crew.meter.mark()
    crew.pass_time(10, "train", "generate")
    crew.trainer = TrainerBeat("t2", {"wait": 400.0})  # another process
    crew.workers = {"w1": {"idle": 0.0}, "w2": {"idle": 9000.0}}  # one started again, one is new
    crew.beat()
    crew.pass_time(10, "train", "generate")
    crew.workers.pop("w1")
    crew.pass_time(10, "train", "generate")
    crew.meter.mark()
    shares = crew.shares()
    assert (shares.trainer_trains, shares.rollouts_generate, shares.rollouts_idle) == (1.0, 1.0, 0.0)


TOLD = st.dictionaries(st.sampled_from(["wait", "train", "generate", "idle", "reward"]), st.floats(0.0, 1e6))


@given(st.lists(st.tuples(TOLD, TOLD, st.booleans()), min_size=2, max_size=20))
def test_whatever_is_told_every_share_lies_between_nothing_and_all(
    beats: list[tuple[dict[str, float], dict[str, float], bool]],
) -> None:
    crew = Crew()
    crew.meter.mark()
    for trainer, worker, running in beats:
        crew.clock.now += MARK_SECONDS
        crew.trainer, crew.workers = TrainerBeat("t", trainer), {"w": worker}
        crew.beat(running)
        crew.meter.mark()
    window = crew.meter.window()
    if window is not None:
        assert all(0.0 <= share <= 1.0 for share in window[0].shares().values())
        assert describe(*window).part in set(Part)
