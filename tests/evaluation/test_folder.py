"""What an evaluation's folder keeps, and what its numbers make of checks that failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.evaluation.report import summarize
from sluice.evaluation.samples import SAMPLES_FILE, SETTINGS_FILE, EvaluationFolder, Sample
from sluice.evaluation.settings import sample_seed
from sluice.types import NO_ANSWER, Verdict, VerdictKind

IDENTITY = {"samples": 2, "temperature": 1.0}


def sample(
    problem: int, number: int, acc: float | None, extracted: str = "", source: str = "set", score: float | None = None
) -> Sample:
    """A judged response; an `acc` of None is a check that failed."""
    kind = VerdictKind.TIMEOUT if acc is None else VerdictKind.SCORED
    verdict = Verdict(kind, acc, acc if score is None else score, extracted, "v@1", 0.1)
    return Sample(problem, number, source, "text \u2028 \ud800", 5, "stop", "default", verdict)


def test_samples_are_there_again_after_the_writer_is_gone_and_the_rest_is_missing(tmp_path: Path) -> None:
    stored = [sample(0, 0, 1.0, "1"), sample(1, 1, None)]
    with EvaluationFolder(tmp_path, IDENTITY) as folder:
        folder.add(stored)
    with EvaluationFolder(tmp_path, IDENTITY) as folder:
        assert folder.done == stored
        assert folder.missing(3, 2) == [(0, [1]), (1, [0]), (2, [0, 1])]


def test_a_line_that_was_cut_when_its_writer_died_is_made_again(tmp_path: Path) -> None:
    with EvaluationFolder(tmp_path, IDENTITY) as folder:
        folder.add([sample(0, 0, 1.0), sample(0, 1, 0.0)])
    file = tmp_path / SAMPLES_FILE
    file.write_bytes(file.read_bytes()[:-10])
    with EvaluationFolder(tmp_path, IDENTITY) as folder:
        assert folder.missing(1, 2) == [(0, [1])]
        folder.add([sample(0, 1, 0.0)])
    assert [json.loads(line)["sample"] for line in file.read_text(encoding="utf-8").split("\n")[:-1]] == [0, 1]


def test_two_evaluations_never_write_into_one_folder(tmp_path: Path) -> None:
    with (
        EvaluationFolder(tmp_path, IDENTITY),
        pytest.raises(ConfigError, match="another evaluation is at work here"),
        EvaluationFolder(tmp_path, IDENTITY),
    ):
        raise AssertionError("the second one got in")


def test_other_settings_are_refused_by_name_once_there_are_samples_and_not_before(tmp_path: Path) -> None:
    with EvaluationFolder(tmp_path, {"samples": 9}):
        pass
    with EvaluationFolder(tmp_path, IDENTITY) as folder:
        folder.add([sample(0, 0, 1.0)])
    with pytest.raises(ConfigError, match=r"was begun with temperature = 1.0 \(now 0.5\)"):
        EvaluationFolder(tmp_path, IDENTITY | {"temperature": 0.5})
    assert json.loads((tmp_path / SETTINGS_FILE).read_text()) == IDENTITY


@pytest.mark.parametrize("line", ["nonsense\n", "[]\n", '{"problem": 0}\n'])
def test_a_line_that_is_no_sample_is_refused_by_its_row(tmp_path: Path, line: str) -> None:
    with EvaluationFolder(tmp_path, IDENTITY) as folder:
        folder.add([sample(0, 0, 1.0)])
    with (tmp_path / SAMPLES_FILE).open("a") as file:
        file.write(line)
    with pytest.raises(ConfigError, match="row 2"):
        EvaluationFolder(tmp_path, IDENTITY)


def test_a_failed_check_is_counted_by_kind_and_is_neither_right_nor_wrong() -> None:
    every, (only,) = summarize([sample(0, 0, 1.0, "7"), sample(0, 1, None), sample(1, 0, 0.0), sample(1, 1, 0.0)], 2)
    assert every.model_dump(exclude={"data_source"}) == only.model_dump(exclude={"data_source"})
    assert only.failed == {"timeout": 1}
    assert only.metrics["avg@2"].value == 0.5  # problem 0 has one judged response, and it is right
    assert only.avg_if_failed == (0.25, 0.5)
    assert only.metrics["pass@1"].problems == 2
    assert only.metrics["pass@2"].problems == 1  # problem 0 has not two to choose from
    assert only.metrics["pass@2"].value == 0.0


def test_a_set_whose_every_check_failed_has_no_metric() -> None:
    every, _ = summarize([sample(0, 0, None), sample(0, 1, None)], 2)
    assert every.metrics == {}
    assert every.avg_if_failed == (0.0, 1.0)


def test_data_sources_are_told_apart_and_together_every_problem_counts_once() -> None:
    samples = [sample(0, 0, 1.0, "1", "easy"), sample(1, 0, 0.0, NO_ANSWER, "hard"), sample(2, 0, 0.0, "5", "hard")]
    every, (easy, hard) = summarize(samples, 1)
    assert (easy.data_source, easy.metrics["avg@1"].value) == ("easy", 1.0)
    assert (hard.data_source, hard.problems, hard.without_answer) == ("hard", 2, 1)
    assert every.metrics["avg@1"].value == pytest.approx(1 / 3)


def test_consensus_is_absent_where_the_verifier_names_no_answers_and_best_counts_scores() -> None:
    samples = [sample(0, 0, 1.0, "", score=0.5), sample(0, 1, 0.0, "", score=-1.0), sample(1, 0, 0.0, "3", score=0.25)]
    every, _ = summarize(samples, 2)
    assert "cons@2" not in every.metrics
    assert "cons@1" not in every.metrics
    assert every.metrics["best@2"].value == 0.5
    assert every.metrics["best@1"].value == pytest.approx((-0.25 + 0.25) / 2)


def test_every_sample_has_a_seed_of_its_own_below_two_to_the_31() -> None:
    seeds = {sample_seed(0, problem, number) for problem in range(100) for number in range(32)}
    assert len(seeds) > 3195
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert sample_seed(1, 0, 0) != sample_seed(0, 0, 0)
