"""What follows when a service has ended."""

from __future__ import annotations

import pytest

from sluice.local.policy import (
    LONG_LIFE_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    MOST_FAILED_STARTS,
    Ending,
    GiveUp,
    History,
    Restart,
    decide,
)
from sluice.local.services import Command, Service

SERVICE = Service("worker", (Command("worker", ("worker",)),), ())
TRAINER = Service("trainer", (Command("trainer", ("trainer",)),), (), ends_after_work=True)


OPTIONAL = Service("status", (Command("status", ("status",)),), (), optional=True)
LONG = LONG_LIFE_SECONDS


def after(*endings: tuple[int | None, bool | float], service: Service = SERVICE) -> Restart | GiveUp:
    """The decision after starts that ended with (code, seconds healthy; False: never, True: it died at once)."""
    history = History()
    for code, healthy in endings:
        ending = Ending("worker", code, None if healthy is False else float(healthy is not True and healthy))
        history.note(service, ending)
    return decide(service, ending, history)


def test_what_dies_after_it_was_healthy_starts_again_soon() -> None:
    assert after((-9, True)) == Restart(0.2)


def test_each_start_that_fails_in_a_row_doubles_the_wait_up_to_a_limit() -> None:
    delays = []
    for failures in range(1, MOST_FAILED_STARTS):
        decision = after((1, True), *[(1, False)] * failures)
        assert isinstance(decision, Restart)
        delays.append(decision.delay_seconds)
    assert delays == [min(LONGEST_BACKOFF_SECONDS, 0.2 * 2**i) for i in range(1, MOST_FAILED_STARTS)]


def test_a_long_life_makes_the_wait_short_again_and_a_short_one_does_not() -> None:
    assert after((1, True), (1, False), (1, False), (1, LONG)) == Restart(0.2)
    assert after((1, True), (1, False), (1, False), (1, LONG - 1)) == Restart(1.6)


def test_what_dies_at_once_whenever_it_is_healthy_waits_longer_and_longer_but_is_never_given_up() -> None:
    assert after(*[(1, True)] * 3) == Restart(0.8)
    assert after(*[(1, True)] * 3000) == Restart(LONGEST_BACKOFF_SECONDS)


def test_an_optional_service_that_was_healthy_once_is_never_given_up() -> None:
    assert after((1, True), *[(1, False)] * 3000, service=OPTIONAL) == Restart(LONGEST_BACKOFF_SECONDS)
    assert after((1, True), (2, False), service=OPTIONAL) == Restart(0.4)
    assert after((1, False), service=OPTIONAL) == GiveUp(user_fault=False)


def test_finished_work_makes_the_wait_short_again() -> None:
    assert after((1, True), (1, True), (0, True), (1, True), service=TRAINER) == Restart(0.2)


def test_too_many_failed_starts_in_a_row_end_the_stack() -> None:
    assert after((1, True), *[(1, False)] * MOST_FAILED_STARTS) == GiveUp(user_fault=False)


def test_what_never_was_healthy_is_not_tried_again() -> None:
    assert after((1, False)) == GiveUp(user_fault=False)
    assert after((None, False)) == GiveUp(user_fault=False)


@pytest.mark.parametrize("was_healthy", [True, False])
def test_wrong_configuration_is_never_tried_again(was_healthy: bool) -> None:
    assert after((2, was_healthy)) == GiveUp(user_fault=True)


def test_a_trainer_that_finished_its_run_starts_at_once_even_if_nobody_saw_it_healthy() -> None:
    assert after((0, False), service=TRAINER) == Restart(0.0)


def test_a_server_that_ends_by_itself_is_started_again_although_it_says_all_is_well() -> None:
    assert after((0, True)) == Restart(0.2)


def test_a_fenced_service_starts_again_without_growing_delay() -> None:
    assert after((3, True), (3, False), (3, False)) == Restart(0.2)
