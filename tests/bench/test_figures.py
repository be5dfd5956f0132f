"""The arithmetic behind the figures, on numbers worked out by hand."""

from __future__ import annotations

import os
import time

import pytest

from bench.harness import Figures, Measured, Report, Side, Spread, figures_of, markdown, ratio, short, take_turns
from bench.memory_bench import Sample, figures
from bench.processes import cpu_seconds, machine_cpu_seconds, session_cpu_seconds
from bench.step_split import Sample as StepSample
from bench.step_split import covered, processes


async def test_sides_take_turns_and_each_begins_a_round() -> None:
    turns: list[str] = []

    def side(name: str, seconds: float) -> Side:
        async def turn() -> Measured:
            turns.append(name)
            return {"seconds": seconds + len(turns)}

        return turn

    found = await take_turns({"a": side("a", 10.0), "b": side("b", 20.0)}, rounds=2)
    assert turns == ["b", "a", "a", "b", "b", "a"], "the first round warms up"
    assert found == {"a": [{"seconds": 13.0}, {"seconds": 16.0}], "b": [{"seconds": 24.0}, {"seconds": 25.0}]}


def test_a_ratio_is_taken_round_by_round() -> None:
    # A machine that was half as fast in the second round changes both sides and not their ratio.
    fast, slow = [{"s": 1.0}, {"s": 2.0}, {"s": 1.0}], [{"s": 3.0}, {"s": 6.0}, {"s": 3.3}]
    quotient = ratio(slow, fast, "s")
    assert (quotient.mean, quotient.max) == pytest.approx((3.1, 3.3))
    assert (quotient.median, quotient.min) == (3.0, 3.0)
    assert str(figures_of({"fast": fast})["fast"]["s"]) == "1 (1 – 2)"


def test_figures_are_shown_with_three_digits() -> None:
    assert [short(v) for v in (12345.6, 100.4, 99.96, 0.123456)] == ["12,346", "100", "100", "0.123"]
    assert str(Spread.of([1.0, 2.0, 4.0])) == "2 (1 – 4)"
    assert str(Spread.of([1.5])) == "1.5"


def test_a_report_is_written_as_tables_for_the_documentation() -> None:
    figures: Figures = {"a": {"seconds": Spread.of([1.0, 2.0, 4.0]), "tokens": 12.0}, "b": {"seconds": 3.0}}
    assert markdown(Report({}, figures, {"b / a": 1.5}, "")).splitlines() == [
        "| | seconds | tokens |",
        "| --- | --- | --- |",
        "| a | 2 (1 – 4) | 12 |",
        "| b | 3 | - |",
        "",
        "| ratio | |",
        "| --- | --- |",
        "| b / a | 1.5 |",
    ]


def test_memory_is_compared_by_the_least_that_was_held_early_and_late() -> None:
    held = [10.0, 50.0, 40.0, 60.0, 70.0, 44.0]  # at 0, 20, … 100 % of the groups; the first look is while it starts
    samples = [Sample(at, 200 * at, {"nats": mib}, {"nats": 0.2 * at}) for at, mib in enumerate(held)]
    row = figures(samples, "nats")
    assert row == {"MiB early": 40, "MiB late": 44, "late / early": 1.1, "MiB at most": 70, "CPU-ms": 1.0}


def test_time_in_which_anything_went_on_is_counted_once() -> None:
    assert covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.5, 5.7)], (0.0, 10.0)) == 4.0
    assert covered([(0.0, 2.0), (8.0, 20.0)], (1.0, 10.0)) == 3.0
    assert covered([(0.0, 1.0)], (2.0, 3.0)) == 0.0


def test_processor_time_is_that_within_the_window_whichever_process_used_it() -> None:
    samples = [
        StepSample(0.0, 100.0, {("trainer", 1): 5.0}),
        StepSample(2.0, 103.0, {("trainer", 1): 7.0}),
        StepSample(4.0, 107.0, {("trainer", 2): 0.5}),  # 1 has ended, its successor began within the window
    ]
    rows = processes(samples, (1.0, 4.0), steps=3)
    assert rows["CPU: trainer"] == {"CPU-s / step": pytest.approx(1.5 / 3), "cores": pytest.approx(1.5 / 3)}
    assert rows["CPU: everything else here"]["cores"] == pytest.approx((107.0 - 101.5 - 1.5) / 3)


def test_the_clocks_of_a_process_count_what_it_computes() -> None:
    begin, whole = cpu_seconds(os.getpid()), machine_cpu_seconds()
    mine = time.process_time()
    while time.process_time() - mine < 0.1:
        pass
    assert cpu_seconds(os.getpid()) - begin == pytest.approx(0.1, rel=0.2)
    assert machine_cpu_seconds() - whole >= 0.05
    assert session_cpu_seconds()[os.getsid(0)] > 0
