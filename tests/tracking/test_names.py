"""Every statistic of a training step has a name in the trackers, and the page says which."""

from __future__ import annotations

import re

from services.trainer.learner import Outcome
from services.trainer.progress import Progress
from services.trainer.report import StepReport
from sluice.algorithms.losses import GapSums, UpdateSums
from sluice.config import load_run_spec
from sluice.tracking.names import BATCH, STEP, VERL, values_of, with_verl_names
from sluice.types import Batch, Floors, PolicyVersion, SamplingStats, Tally
from sluice.views import BatchView, TrainingView
from tests.tracking.conftest import ROOT

PAGE = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8")
WHICH_STEP = {"step", "version"}
KEYS = {"dropped": "REASON", "staleness": "N", "seconds": "PHASE"}
PHASES = ("wait", "fetch", "train", "publish", "checkpoint", "total")


def report() -> StepReport:
    """Of a batch without groups: its fields are those of every other."""
    batch = Batch(0, (), (), 0, (), Floors(0, 0), Tally(), SamplingStats(), 0)
    return StepReport(
        batch=batch,
        spec=load_run_spec(ROOT / "configs" / "tiny.toml"),
        version=PolicyVersion(1, 1),
        outcome=Outcome(
            updates=0,
            grad_norms=(),
            overflows=0,
            sums=UpdateSums(),
            gap=GapSums(),
            trained_tokens=0,
            trained_sequences=0,
        ),
        progress=Progress(0, 0),
        lr=1e-6,
        prompt_tokens=0,
        computed_tokens=0,
        seconds=dict.fromkeys(PHASES, 1.0),
    )


def rows(head: str) -> list[list[str]]:
    """Cells of the table under this head, without their backticks."""
    table = PAGE.split(head)[1].split("\n\n", maxsplit=1)[0]
    found = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return [[cell.replace("`", "") for cell in row] for row in found]


def test_every_statistic_that_trainer_and_coordinator_tell_has_a_name_of_its_own() -> None:
    assert set(STEP) == set(report().fields()) - WHICH_STEP == set(TrainingView.model_fields) - WHICH_STEP
    assert set(BATCH) == set(BatchView.model_fields) - WHICH_STEP
    names = [*BATCH.values(), *STEP.values()]
    assert len(set(names)) == len(names)
    assert {name.split("/")[0] for name in names} == {
        *("reward", "actor", "behaviour", "sampling", "length", "staleness", "timing")
    }


def test_a_reported_step_is_tracked_whole() -> None:
    values = values_of({}, report().fields())
    assert len(values) == len(STEP) - 1 + len(PHASES)
    assert {f"timing/{phase}_seconds" for phase in PHASES} <= set(values)


def test_verls_names_mean_statistics_that_are_tracked() -> None:
    values = values_of({}, report().fields())
    assert set(with_verl_names(values)) == {*values, *VERL}


def test_the_page_has_every_name_once_and_says_what_verl_calls_it() -> None:
    ours = [name.replace("{}", KEYS.get(field, "")) for names in (BATCH, STEP) for field, name in names.items()]
    assert sorted(name for name, _ in rows("| metric | meaning |")) == sorted(ours)
    assert {theirs: tuple(names.split(" + ")) for theirs, names in rows("| verl | Sluice |")} == VERL


def test_metrics_that_the_page_finds_in_prometheus_are_there() -> None:
    known = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = re.findall(r"`(sluice_[a-z_]+)`", PAGE)
    assert named
    assert [name for name in named if f"`{name}`" not in known] == []
