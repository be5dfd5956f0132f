"""Where a worker's time goes: one thing at a time, whatever its groups do beside one another."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from services.rollout.activity import CALLED, Activity
from sluice.timesheet import TimeSheet


@pytest.mark.parametrize(
    ("going_on", "doing"),
    [
        ([], "idle"),
        (["prompts"], "idle"),
        (["group"], "store"),
        (["group", "reward"], "reward"),
        (["group", "reward", "group", "generate"], "generate"),
        (["group", "policy_version"], "weight_sync"),
        (["group", "policy_version", "group", "generate"], "generate"),
        (["group", "generate", "weight_sync"], "weight_sync"),
    ],
)
def test_a_worker_does_what_most_decides_when_its_groups_end(going_on: list[str], doing: str) -> None:
    activity = Activity(lambda *_: None)
    for what in going_on:
        activity.begin(what)
    before = activity.settle().get(doing, 0.0)
    time.sleep(0.01)
    assert activity.settle()[doing] - before >= 0.01


@given(st.lists(st.tuples(st.sampled_from(["wait", "train", "publish"]), st.floats(0.0, 100.0))))
def test_what_was_done_adds_up_to_the_time_that_passed(steps: list[tuple[str, float]]) -> None:
    now, told = 0.0, 0.0

    def count(_: str, seconds: float) -> None:
        nonlocal told
        told += seconds

    sheet = TimeSheet("load", count, lambda: now)
    for doing, seconds in steps:
        sheet.switch(doing)
        now += seconds
    settled = sheet.settle()
    assert sum(settled.values()) == pytest.approx(now)
    assert told == pytest.approx(now)
    for name in {doing for doing, _ in steps}:
        assert settled[name] == pytest.approx(sum(seconds for doing, seconds in steps if doing == name))


def test_every_name_that_a_worker_books_is_one_that_the_metric_lists() -> None:
    from services.rollout.metrics import TIME_SECONDS

    (family,) = TIME_SECONDS.describe()
    assert {*CALLED.values(), "idle"} == set(family.documentation.split(": ")[1].rstrip(".").split(", "))


def test_a_worker_that_has_left_a_run_shows_nothing_of_it_but_what_it_has_counted() -> None:
    from services.rollout import metrics

    metrics.join("run-left", slots=4)
    metrics.begin_group("run-left")
    with metrics.waiting("run-left", "generate"):
        assert REGISTRY.get_sample_value("sluice_rollout_waiting", {"run": "run-left", "wait": "generate"}) == 1
    metrics.end_group("run-left")
    assert metrics.time_spent("run-left")["generate"] > 0
    metrics.leave("run-left")
    gauges = ("in_flight_groups", "slots", "policy_version")
    assert [REGISTRY.get_sample_value(f"sluice_rollout_{name}", {"run": "run-left"}) for name in gauges] == [None] * 3
    assert REGISTRY.get_sample_value("sluice_rollout_waiting", {"run": "run-left", "wait": "generate"}) is None
    booked = {"run": "run-left", "doing": "generate"}
    assert (REGISTRY.get_sample_value("sluice_rollout_time_seconds_total", booked) or 0) > 0
