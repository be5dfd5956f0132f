"""What a run can rely on when prompts that teach nothing are skipped: the order, the odds, and what is shown of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.coordinator.curriculum import Curriculum, Difficulty
from services.coordinator.draws import Draws
from services.coordinator.filter_queue import FilterQueue
from services.coordinator.rules import QueueRules
from sluice.config import CurriculumConfig
from sluice.data import position
from sluice.types import (
    Batch,
    Drop,
    DropReason,
    FinishReason,
    Group,
    GroupStatus,
    Issue,
    PolicyVersion,
    RolloutSummary,
    VerdictKind,
)

V0 = PolicyVersion(0, 1)
ROWS = 12
MIXED, RIGHT, WRONG = (1.0, 0.0), (1.0, 1.0), (0.0, 0.0)
Record = Issue | Drop | Batch


def group(n: int, accs: tuple[float, ...]) -> Group:
    made = [RolloutSummary((), b"", VerdictKind.SCORED, acc, acc, 0.0, 3, FinishReason.STOP, V0, V0) for acc in accs]
    return Group("run", n, "attempt", GroupStatus.SCORED, tuple(made), "w", "e", 0, 1.0, 0.1)


class School:
    """A queue with its curriculum over a set of ROWS prompts. `right` says how often a prompt's group is all correct,
    `wrong` how often all wrong; the others are mixed.
    """

    def __init__(self, rule: CurriculumConfig, seed: int, epochs: int | None = None) -> None:
        self.rule, self.seed, self.rng = rule, seed, random.Random(seed)
        limit = None if epochs is None else epochs * ROWS
        self.rules = QueueRules(batch_size=4, max_staleness=1, total_steps=10_000, data_limit=limit)
        self.queue = FilterQueue(self.rules)
        self.curriculum = self.fresh()
        self.records: list[Record] = []
        self.rows: dict[int, int] = {}
        self.right = dict.fromkeys(range(ROWS), 0.0)
        self.wrong = dict.fromkeys(range(ROWS), 0.0)
        self.stored: list[Group] = []

    def fresh(self) -> Curriculum:
        return Curriculum(self.rule, self.seed, self.row_of, lambda row: "even" if row % 2 == 0 else "odd")

    def row_of(self, draw: int) -> int:
        return position(draw, ROWS, self.seed, shuffle=True)[1]

    def append(self, record: Record) -> None:
        self.records.append(record)
        self.queue.commit(record)
        self.curriculum.fold(record)

    def step(self) -> bool:
        """Do what the coordinator would do now, or have one group finish; False when there is nothing to do."""
        if self.rule.skips and (drop := self.queue.plan_recorded()):
            self.append(drop)
        elif planned := self.queue.plan_issue():
            issue = self.curriculum.choose(planned, self.rules.data_limit)
            begin = self.curriculum.draws
            taken = [d for d in range(begin, begin + issue.count + len(issue.skipped)) if d not in issue.skipped]
            self.rows |= dict(zip(range(issue.first, issue.first + issue.count), map(self.row_of, taken), strict=True))
            self.append(issue)
        elif batch := self.queue.plan_batch():
            self.append(batch)
            self.queue.publish(self.queue.k)
        elif self.queue.in_flight:
            self.finish(self.rng.choice(list(self.queue.in_flight_groups())))
        else:
            return False
        return True

    def finish(self, n: int) -> None:
        row, luck = self.rows[n], self.rng.random()
        accs = RIGHT if luck < self.right[row] else WRONG if luck < self.right[row] + self.wrong[row] else MIXED
        self.stored.append(group(n, accs))
        self.queue.store(len(self.stored), self.stored[-1])


rules = st.builds(
    CurriculumConfig,
    skip_all_correct_after=st.none() | st.integers(1, 3),
    skip_all_wrong_after=st.none() | st.integers(1, 3),
    return_probability=st.sampled_from([0.05, 0.3, 1.0]),
)
chances = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=ROWS, max_size=ROWS)


@settings(max_examples=30, deadline=None)
@given(rules, st.integers(0, 2**31), chances, chances)
def test_every_draw_is_issued_or_skipped_once_and_a_successor_goes_on_in_the_same_order(
    rule: CurriculumConfig, seed: int, right: list[float], wrong: list[float]
) -> None:
    school = School(rule, seed)
    school.right, school.wrong = dict(enumerate(right)), dict(enumerate(wrong))
    for _ in range(200):
        school.step()
    draws, again, order = Draws(), school.fresh(), list[int]()
    for record in school.records:
        if isinstance(record, Issue):
            # The decision is a function of the records before it, and the record has it as it was made.
            assert again.choose(replace(record, skipped=()), None) == record
            order += sorted([*record.skipped, *(draw for _, draw in draws.take(record))])
        again.fold(record)
    assert order == list(range(draws.next)) == list(range(school.curriculum.draws))
    assert {n: school.row_of(draws.of(n)) for n in school.rows} == school.rows
    assert (again.rows, again.sums, again.lots) == (
        school.curriculum.rows,
        school.curriculum.sums,
        school.curriculum.lots,
    )
    last = max(i for i, record in enumerate(school.records) if isinstance(record, Issue | Batch))
    batches = [record for record in school.records[: last + 1] if isinstance(record, Batch)]
    if batches:
        restored = FilterQueue.restore(school.rules, batches[-1])
        for record in school.records[school.records.index(batches[-1]) + 1 :]:
            restored.commit(record)
        for sequence, stored in enumerate(school.stored, start=1):
            if sequence > batches[-1].floors.groups:
                restored.store(sequence, stored)
        assert restored.tally == school.queue.tally
        assert (restored.next_n, restored.skipped) == (school.queue.next_n, school.queue.skipped)


def test_only_what_was_all_correct_or_all_wrong_often_enough_in_a_row_is_ever_skipped() -> None:
    school = School(CurriculumConfig(skip_all_correct_after=2, skip_all_wrong_after=3, return_probability=0.05), seed=4)
    school.right[0] = school.wrong[1] = 1.0
    school.right[2] = school.wrong[2] = 0.5  # neither for long
    while school.queue.k < 60:
        school.step()
    shown = school.curriculum.rows
    assert all(shown[row].skipped == 0 for row in range(3, ROWS))
    assert shown[0].skipped > 0 and shown[1].skipped > 0
    assert school.curriculum.chance(0) == school.curriculum.chance(1) == 0.05
    assert all(school.curriculum.chance(row) == 1 for row in range(3, ROWS))
    assert school.curriculum.lots == Counter({DropReason.ALL_CORRECT: 1, DropReason.ALL_WRONG: 1}) + Counter(
        [DropReason.ALL_CORRECT] * (shown[2].streak >= 2) + [DropReason.ALL_WRONG] * (shown[2].streak <= -3)
    )
    assert (shown[0].difficulty, shown[1].difficulty) == (Difficulty.ALWAYS_RIGHT, Difficulty.ALWAYS_WRONG)
    assert (shown[5].difficulty, shown[5].accuracy) == (Difficulty.MOSTLY_RIGHT, 0.5)


def test_a_prompt_that_is_mixed_again_is_found_and_then_takes_part_in_every_epoch() -> None:
    school = School(CurriculumConfig(skip_all_wrong_after=1, return_probability=0.2), seed=1)
    school.wrong[3] = 1.0
    while school.queue.k < 40:
        school.step()
    assert school.curriculum.chance(3) == 0.2
    school.wrong[3] = 0.0
    while school.curriculum.chance(3) < 1:
        assert school.queue.k < 200, "the lot has not brought it back in 50 epochs"
        school.step()
    before = school.curriculum.rows[3].skipped
    while school.queue.k < 260:
        school.step()
    assert school.curriculum.rows[3].skipped == before


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_corrected_counts_are_those_of_a_run_that_skips_nothing(p: float) -> None:
    """Half of the prompts are drawn by lot nearly always; means over seeds lie within four standard errors."""
    epochs, errors = 20, list[tuple[float, float, float]]()
    for seed in range(40):
        school = School(
            CurriculumConfig(skip_all_correct_after=1, skip_all_wrong_after=1, return_probability=p), seed, epochs
        )
        school.right |= dict.fromkeys(range(0, ROWS, 4), 0.9)
        school.wrong |= dict.fromkeys(range(1, ROWS, 4), 0.9)
        while school.step():
            pass
        for drop in school.queue.plan_end(DropReason.RUN_ENDED):
            school.append(drop)
        sums = school.curriculum.sums.values()
        # Without skips every draw is scored; a draw of a prompt in question is kept one time in ten, others always.
        scored, kept = sum(s.scored_weight for s in sums), sum(s.kept_weight for s in sums)
        truth_kept = epochs * (ROWS / 2 + ROWS / 2 * 0.1)
        skipped = school.queue.skipped / school.curriculum.draws
        errors.append((scored - epochs * ROWS, kept - truth_kept, skipped))
    for column in (0, 1):
        values = [error[column] for error in errors]
        mean = sum(values) / len(values)
        spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        assert abs(mean) < 4 * spread / len(values) ** 0.5
        assert spread > 0
    assert min(error[2] for error in errors) > 0.05  # it did skip: the correction had something to do


def test_the_data_ends_after_its_epochs_although_the_rest_of_it_is_skipped() -> None:
    school = School(CurriculumConfig(skip_all_correct_after=1, return_probability=0.01), seed=3, epochs=6)
    school.right = dict.fromkeys(range(ROWS), 1.0)
    while school.step():
        pass
    assert school.queue.finished and school.queue.exhausted
    assert school.queue.next_n + school.queue.skipped == 6 * ROWS == school.curriculum.draws
    assert school.queue.next_n < 3 * ROWS


def test_a_run_that_asks_for_no_skips_issues_as_if_there_were_no_curriculum() -> None:
    school = School(CurriculumConfig(), seed=2)
    school.right = dict.fromkeys(range(ROWS), 0.9)
    for _ in range(400):
        school.step()
    assert all(not record.skipped for record in school.records if isinstance(record, Issue))
    assert all(school.row_of(n) == row for n, row in school.rows.items())
    assert sum(shown.scored for shown in school.curriculum.rows.values()) > 100


def test_groups_without_outcomes_on_record_say_nothing_about_their_prompt() -> None:
    curriculum = Curriculum(CurriculumConfig(skip_all_wrong_after=1), 0, lambda draw: draw, lambda row: "only")
    floors = School(CurriculumConfig(), 0).queue.plan_issue()
    assert floors is not None
    curriculum.fold(replace(floors, count=4))
    for n, reason in enumerate((DropReason.STRAGGLER, DropReason.VERIFIER_FAILED, DropReason.SURPLUS)):
        curriculum.fold(Drop((n,), reason))
    assert curriculum.drawn(3) == ("only", Difficulty.UNSEEN)
    curriculum.fold(Drop((3,), DropReason.ALL_WRONG))
    curriculum.fold(Drop((3,), DropReason.ALL_WRONG))  # a BATCH record repeats it
    assert [curriculum.rows[row].scored for row in range(4)] == [0, 0, 0, 1]
    assert curriculum.drawn(3) is None
