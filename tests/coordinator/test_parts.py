"""Who is named when a run stands still: parts that say what they wait for, and parts that say nothing any more."""

from __future__ import annotations

from services.coordinator.attendance import FORGET_SECONDS, Attendance
from services.coordinator.evaluation.status import Evaluating
from services.coordinator.filter_queue import FilterQueue
from services.coordinator.history import RunHistory
from services.coordinator.meter import Meter
from services.coordinator.parts import NAMED_AFTER_SECONDS, SILENT_SECONDS, waits_of_parts
from services.coordinator.rules import QueueRules
from services.coordinator.staff import Beat, Staff, TrainerBeat
from services.coordinator.status import Clocks, status_of
from sluice.types import Checkpoint, Origin
from sluice.views import WorkerView
from sluice.waits import REMIND_SECONDS, Reminder, Waits
from tests.coordinator.stage import spec


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def worker(name: str, **waits: float) -> WorkerView:
    return WorkerView(name=name, engine=f"http://{name}", waits=waits)


def test_of_each_wait_the_longest_is_named_with_whose_it_is_and_its_own_deadline() -> None:
    run = spec(reward__deadline_seconds=7.0)
    staff = Staff(
        (
            worker("a", generate=NAMED_AFTER_SECONDS - 1, reward=9.0, prompts=99.0),
            worker("b", generate=30.0, reward=8.0),
        ),
        TrainerBeat("t", {}, {"rollouts": 40.0, "batch": 500.0}),
    )
    waits = {wait.name: wait for wait in waits_of_parts(run, Beat(staff))}
    assert waits.keys() == {"generate", "reward", "rollouts"}, "who has nothing to do holds nobody up"
    assert "http://b" in waits["generate"].waits_for and "worker a" in waits["reward"].waits_for
    assert waits["reward"].deadline_seconds == 7.0


def test_a_queued_fork_waits_for_the_version_that_it_begins_with() -> None:
    history = RunHistory("fork")
    history.spec = spec()
    history.origin = Origin("run", Checkpoint(k=40, lineage=1, path="40.1", checksum="", chain=""))
    queue = FilterQueue(QueueRules(2, 0, 50, first_step=40))
    status = status_of(history, queue, Clocks(), Meter(), Beat(), Evaluating(history.spec, 40))
    waits = {wait.name: wait.waits_for for wait in status.waits}
    assert waits == {
        "trainer": "a trainer that is free and publishes v40",
        "rollout_worker": "a rollout worker that is free and joins",
    }


def test_while_nats_is_away_nobody_else_is_named_silent() -> None:
    beat = Beat(unheard_seconds=5.0)
    beat.workers_seen.note(["a"])
    beat.workers_seen.note([])
    (wait,) = waits_of_parts(spec(), beat)
    assert (wait.name, wait.seconds, wait.deadline_seconds) == ("nats", 5.0, SILENT_SECONDS)


def test_whoever_is_gone_without_a_goodbye_is_silent_until_somebody_takes_the_place_or_nobody_does_for_long() -> None:
    clock = Clock()
    attendance = Attendance(clock)
    attendance.note(["a", "b", "c"])
    clock.now += 3
    attendance.note(["c"], left=["b"])
    assert attendance.silent() == {"a": 3.0}
    attendance.note(["c", "d"])
    assert attendance.silent() == {}, "d has taken the place of a"
    attendance.note(["d"])
    clock.now += FORGET_SECONDS
    attendance.note(["d"])
    assert attendance.silent() == {}


def test_one_that_comes_back_is_no_longer_silent() -> None:
    attendance = Attendance(Clock())
    for present in (["a", "b"], [], ["a"]):
        attendance.note(present)
    assert attendance.silent().keys() == {"b"}


def test_a_wait_is_told_once_while_it_lasts_and_again_when_it_is_back() -> None:
    clock, reminder = Clock(), Reminder()
    waits = Waits(clock)
    with waits.waiting("x"):
        clock.now += REMIND_SECONDS
        with waits.waiting("x"):
            assert waits.longest() == {"x": REMIND_SECONDS}
            assert reminder.due(waits.longest()) == {"x": REMIND_SECONDS}
        assert reminder.due(waits.longest()) == {}
    assert waits.longest() == {}
    reminder.due(waits.longest())
    with waits.waiting("x"):
        clock.now += REMIND_SECONDS
        assert reminder.due(waits.longest()) == {"x": REMIND_SECONDS}
