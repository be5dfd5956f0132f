"""Evaluations inside a run, as their records tell them: which are due, what they need, what they ask for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.evaluation.sets import LoadedSet, load_sets, prompt_of, samples_of, write_files
from services.coordinator.evaluation.status import Evaluating
from sluice.config import EvaluationConfig, EvaluationSet, RunSpec, load_run_spec, parse_run_spec
from sluice.errors import ConfigError
from sluice.evaluation.history import EvaluationHistory
from sluice.evaluation.settings import sample_seed
from sluice.transport.log import Entry
from sluice.types import (
    EvaluatedResponse,
    EvaluationBegun,
    EvaluationEnded,
    EvaluationGroup,
    EvaluationOutcome,
    EvaluationRecord,
    FinishReason,
    PolicyVersion,
    Verdict,
    VerdictKind,
)
from sluice.views import WorkerView

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SUMS = EvaluationSet(name="sums", files=("configs/data/tiny_addition.jsonl",))
EVERY_FIVE = EvaluationConfig(sets=(SUMS,), every_steps=5)


def v(number: int, lineage: int = 1) -> PolicyVersion:
    return PolicyVersion(number, lineage)


def history(*records: EvaluationRecord, config: EvaluationConfig = EVERY_FIVE, first: int = 0) -> EvaluationHistory:
    folded = EvaluationHistory(config, first)
    for sequence, record in enumerate(records, 1):
        folded.fold(Entry(sequence, record, NOW))
    return folded


def begun(version: PolicyVersion) -> EvaluationBegun:
    return EvaluationBegun(version, 1, 8, "{}")


def ended(version: PolicyVersion, outcome: EvaluationOutcome = EvaluationOutcome.FINISHED) -> EvaluationEnded:
    return EvaluationEnded(version, outcome, "")


def test_before_training_every_so_many_steps_and_at_the_end_each_number_is_due_once() -> None:
    published = [v(number) for number in range(12)]
    assert history().due(published, last=None) == [v(0), v(5), v(10)]
    assert history().due(published, last=11) == [v(0), v(5), v(10), v(11)]
    assert history(begun(v(0)), ended(v(0)), begun(v(5))).due(published, last=11) == [v(10), v(11)]
    later = EVERY_FIVE.model_copy(update={"before_training": False})
    assert history(config=later).due(published, last=None) == [v(5), v(10)]
    assert EvaluationHistory(EvaluationConfig()).due(published, last=11) == [], "without a set nothing is evaluated"


def test_a_fork_begins_with_the_version_that_it_was_forked_at() -> None:
    forked = history(first=7)
    assert forked.due([v(number) for number in range(7, 12)], last=None) == [v(7), v(10)]
    assert forked.pending(last=9), "neither v7 nor v9 is evaluated"


def test_a_version_that_a_restarted_trainer_published_again_is_not_evaluated_again() -> None:
    assert history().due([v(5, 1), v(5, 2)], last=None) == [v(5, 2)], "the newest of a number"
    assert history(begun(v(5, 1))).due([v(5, 1), v(5, 2)], last=None) == []


@pytest.mark.parametrize("outcome", EvaluationOutcome)
def test_the_run_waits_for_every_evaluation_that_is_due_however_it_ends(outcome: EvaluationOutcome) -> None:
    records: list[EvaluationRecord] = []
    for version in (v(0), v(5), v(7)):
        assert history(*records).pending(last=7)
        records += [ended(version, outcome)] if outcome is EvaluationOutcome.SKIPPED else [begun(version)]
        assert history(*records).pending(last=7) or version == v(7)
        records += [] if outcome is EvaluationOutcome.SKIPPED else [ended(version, outcome)]
    assert not history(*records).pending(last=7)


def test_weights_are_needed_from_their_publication_until_their_evaluation_has_ended() -> None:
    published = {v(number) for number in range(4, 12)}
    assert history().needed(published) == {v(5), v(10)}
    assert history(begun(v(5))).needed(published) == {v(5), v(10)}
    assert history(begun(v(5)), ended(v(5))).needed(published) == {v(10)}
    assert history(begun(v(11))).needed({v(11)}) == {v(11)}, "the last version, though no multiple"


def test_training_generation_is_said_to_pause_only_while_every_worker_is_reserved() -> None:
    evaluating = Evaluating(spec(sets=[{"name": "sums", "files": ["x"]}]))
    evaluating.history.fold(Entry(1, begun(v(0)), NOW))
    free, reserved = WorkerView(name="a"), WorkerView(name="b", evaluating="v0.1")
    assert evaluating.news([free, reserved]) is None
    told = [evaluating.news(workers) for workers in ([reserved], [reserved], [free, reserved], [])]
    assert [news and news["state"] for news in told] == ["generation_paused", None, "generation_resumed", None]
    waits = [evaluating.wait(workers) for workers in ([reserved], [free, reserved])]
    assert all(wait is not None and wait.deadline_seconds == 3600 for wait in waits)
    assert waits[0] and "training generation pauses, optimisation goes on" in waits[0].waits_for
    assert waits[1] and "1 of 2 rollout workers reserved" in waits[1].waits_for and "pauses" not in waits[1].waits_for


def spec(**evaluation: Any) -> RunSpec:
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["model"]["path"] = str(ROOT / "models" / "tiny")
    fields["evaluation"] |= evaluation
    return parse_run_spec(fields)


def loaded(tmp_path: Path, copies: int, **evaluation: Any) -> LoadedSet:
    """A set of three problems, each of them `copies` times in its file."""
    rows = [
        {
            "prompt": f"{i}+1=",
            "reward_model": {"ground_truth": str(i + 1)},
            "data_source": "exact",
            "extra_info": {"index": c},
        }
        for c in range(copies)
        for i in range(3)
    ]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = spec(sets=[{"name": "sums", "files": [str(file)]}], **evaluation)
    return LoadedSet.load(chosen, chosen.evaluation.sets[0])


@pytest.mark.usefixtures("tiny_model")
def test_the_copies_of_a_problem_in_its_file_count_once_and_every_response_is_asked_for_once(tmp_path: Path) -> None:
    found = loaded(tmp_path, copies=32, samples=20)
    assert found.facts | {"fingerprint": ""} == {"fingerprint": "", "problems": 3, "rows_read": 96, "duplicates": 93}
    pieces = list(found.pieces())
    asked = [(piece.problem, sample) for piece in pieces for sample in piece.samples]
    assert sorted(asked) == [(problem, sample) for problem in range(3) for sample in range(20)]
    prompt = prompt_of(pieces[1], "run-1", 1, v(5)).prompt
    assert (prompt.group_size, prompt.text, prompt.ground_truth, prompt.sampling.top_p) == (8, "0+1=", "1", 0.7)
    assert prompt_of(pieces[1], "run-1", 1, v(5)).seeds == tuple(sample_seed(0, 0, i) for i in range(8, 16))


@pytest.mark.usefixtures("tiny_model")
def test_long_responses_are_asked_for_in_smaller_pieces_so_that_a_group_is_one_message(tmp_path: Path) -> None:
    sizes = {len(piece.samples) for piece in loaded(tmp_path, copies=1, samples=6, max_tokens=30_000).pieces()}
    assert sizes == {2}


@pytest.mark.usefixtures("tiny_model")
def test_results_and_files_are_of_what_is_there_and_a_second_writing_doubles_nothing(tmp_path: Path) -> None:
    found = loaded(tmp_path, copies=1, samples=2)
    pieces = list(found.pieces())
    right = EvaluatedResponse("1", 1, FinishReason.STOP, Verdict(VerdictKind.SCORED, 1.0, 1.0, "1", "exact", 0.0))
    wrong = EvaluatedResponse("x", 1, FinishReason.STOP, Verdict(VerdictKind.SCORED, 0.0, 0.0, "x", "exact", 0.0))
    groups = [
        EvaluationGroup("run-1", v(5), 0, (right, wrong), "w", "e", 0.0, 0.0),
        EvaluationGroup("run-1", v(5), 2, (), "w", "e", 0.0, 0.0, error="the engine refused"),
    ]
    samples = samples_of(pieces, groups)["sums"]
    view = found.view("tiny-v5.1", "v5.1 ab", samples)
    assert {name: metric.value for name, metric in view.all.metrics.items() if name.endswith("@2")} == {
        "avg@2": 0.5,
        "pass@2": 1.0,
        "cons@2": 0.5,
        "best@2": 1.0,
    }
    for _ in range(2):  # as when the coordinator died after the files and before its record
        write_files(tmp_path / "out", view, samples)
    lines = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert [(line["problem"], line["sample"], line["verdict"]["extracted"]) for line in lines] == [
        (0, 0, "1"),
        (0, 1, "x"),
    ]


@pytest.mark.usefixtures("tiny_model")
async def test_a_set_that_is_wrong_or_has_changed_is_refused_by_its_name(tmp_path: Path) -> None:
    absent = spec(sets=[{"name": "sums", "files": [str(tmp_path / "absent.jsonl")]}])
    with pytest.raises(ConfigError, match=r"evaluation set 'sums': .*absent\.jsonl"):
        await load_sets(absent, {})
    there = spec(sets=[SUMS.model_dump()])
    assert len(await load_sets(there, {})) == 1
    with pytest.raises(ConfigError, match="evaluation set 'sums': its problems have changed"):
        await load_sets(there, {"sums": {"fingerprint": "of before"}})
    with pytest.raises(ConfigError, match="two evaluation sets are called 'sums'"):
        spec(sets=[SUMS.model_dump(), SUMS.model_dump()])
