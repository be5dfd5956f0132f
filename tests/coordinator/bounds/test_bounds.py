"""Staleness, capacity and recovery under random schedules: `machine.py` says what is played, `truth.py` judges it.

`SCHEDULES=2000 pytest tests/coordinator/bounds` plays other and more schedules each time; `make chaos` does so too.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.coordinator.bounds.machine import Run


def play(schedules: int = 0) -> None:
    """So many random schedules, others each time; 0: the same few."""
    chosen = settings(
        max_examples=schedules or 120,
        stateful_step_count=30,
        derandomize=not schedules,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # to shrink takes minutes, and says little more than the steps do
        print_blob=True,
    )
    run_state_machine_as_test(Run, settings=chosen)


def test_no_schedule_makes_a_group_stale_a_reservation_phantom_or_a_recovery_differ() -> None:
    play(int(os.environ.get("SCHEDULES", "0")))
