"""The short storm; `make chaos` runs the long ones, with the real engine and trainer as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.storm import CALM_STEPS, Storm, weather_the

pytestmark = pytest.mark.usefixtures("tiny_model")


async def test_a_run_goes_on_by_itself_whatever_is_killed_and_nothing_is_lost_trained_twice_or_stale(
    tmp_path: Path,
) -> None:
    storm = Storm(kills=8, seed=4, simulated=True, pause_seconds=0.6, silence_seconds=3.0)
    outcome = await weather_the(storm, tmp_path / "storm")
    report = outcome.report
    assert report is not None
    assert report.findings == ()
    assert (report.lost, report.trained_twice, report.staleness_violations) == (0, 0, 0)
    assert report.issued == report.trained + sum(report.dropped.values()) and report.live == 0
    assert report.training_steps > CALM_STEPS
    assert outcome.killed.total() == storm.kills
