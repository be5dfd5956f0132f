"""What each prompt has shown so far, and which prompts are passed over for it: a pure fold of LEDGER records.

Groups that are stored but on no record yet do not count: so whoever reads the same records decides the same, and a
decision can be made again from what was written before it. What was decided stands in the ISSUE record all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from services.coordinator.draws import Draws
from sluice.config import CurriculumConfig
from sluice.data import chance_of
from sluice.types import Batch, BatchGroup, Drop, DropReason, Issue

MOST_SKIPS = 50_000
"""Draws that one ISSUE record passes over before it ends with the groups that it has: it is one message."""


class Difficulty(StrEnum):
    """How often the policy was right at a prompt before the group in question."""

    UNSEEN = "unseen"
    ALWAYS_WRONG = "always_wrong"
    MOSTLY_WRONG = "mostly_wrong"
    MOSTLY_RIGHT = "mostly_right"
    ALWAYS_RIGHT = "always_right"


@dataclass(slots=True)
class Shown:
    """One prompt's history."""

    issued: int = 0
    skipped: int = 0
    scored: int = 0
    """Groups whose outcomes are on record: the times it was seen."""
    kept: int = 0
    """Of these, the groups that trained."""
    judged: int = 0
    """Of these, the groups whose accuracy is on record: all but those with equal outcomes between 0 and 1."""
    acc_sum: float = 0.0
    streak: int = 0
    """Scored groups in a row that were all correct, up to the last one; negative: all wrong; 0: mixed, or none."""

    @property
    def accuracy(self) -> float | None:
        """Mean over the groups whose accuracy is known."""
        return self.acc_sum / self.judged if self.judged else None

    @property
    def difficulty(self) -> Difficulty:
        match self.accuracy:
            case None:
                return Difficulty.UNSEEN
            case 0.0:
                return Difficulty.ALWAYS_WRONG
            case 1.0:
                return Difficulty.ALWAYS_RIGHT
            case accuracy:
                return Difficulty.MOSTLY_WRONG if accuracy < 0.5 else Difficulty.MOSTLY_RIGHT


@dataclass(frozen=True, slots=True)
class Drawn:
    """A group as it was issued: its row, how difficult that was then, and how likely it was to be issued at all."""

    row: int
    difficulty: Difficulty
    chance: float


@dataclass(slots=True)
class Sums:
    """Scored and kept groups; the weights sum 1/chance instead of 1, which undoes the skipping on average."""

    scored: int = 0
    kept: int = 0
    scored_weight: float = 0.0
    kept_weight: float = 0.0


class Curriculum:
    """Folds a run's ISSUE, DROP and BATCH records in ledger order, each once.

    Args:
        rule: the run's `curriculum`.
        seed: the run's `trainer.seed`.
        row_of: the row of the data set that a draw of the data order takes.
        source_of: the data source of a row.
    """

    def __init__(
        self, rule: CurriculumConfig, seed: int, row_of: Callable[[int], int], source_of: Callable[[int], str]
    ) -> None:
        self.rule, self._seed, self._row_of, self._source_of = rule, seed, row_of, source_of
        self.rows: defaultdict[int, Shown] = defaultdict(Shown)
        self.sums: defaultdict[tuple[str, Difficulty], Sums] = defaultdict(Sums)
        """By data source and difficulty."""
        self._draws = Draws()
        self._open: dict[int, Drawn] = {}
        """Issued groups that no record has settled."""
        self.lots: Counter[DropReason] = Counter()
        """How many prompts are drawn by lot at present, by what their last groups were: all correct, or all wrong."""

    # ---------------------------------------------------------------- deciding

    def choose(self, issue: Issue, data_limit: int | None) -> Issue:
        """`issue` as planned, with the draws that it passes over; fewer groups where the data ends, even none.

        Args:
            data_limit: draws that the data can give; None: no end.
        """
        if not self.rule.skips:
            return issue
        draw, skipped, count = self._draws.next, list[int](), 0
        while count < issue.count and (data_limit is None or draw < data_limit):
            if self._passes_over(draw):
                skipped.append(draw)
            else:
                count += 1
            draw += 1
            if count and len(skipped) >= MOST_SKIPS:
                break
        return replace(issue, count=count, skipped=tuple(skipped))

    def chance(self, row: int) -> float:
        """How likely this row is to be issued at its next turn, as far as the records go: 1, or the lot's."""
        shown = self.rows.get(row)
        return 1.0 if shown is None or self._lot(shown) is None else self.rule.return_probability

    def _passes_over(self, draw: int) -> bool:
        return chance_of(self._seed, draw) >= self.chance(self._row_of(draw))

    def _lot(self, shown: Shown) -> DropReason | None:
        """Why this prompt is drawn by lot, or None."""
        correct, wrong = self.rule.skip_all_correct_after, self.rule.skip_all_wrong_after
        if correct is not None and shown.streak >= correct:
            return DropReason.ALL_CORRECT
        return DropReason.ALL_WRONG if wrong is not None and -shown.streak >= wrong else None

    # ---------------------------------------------------------------- what has happened

    def fold(self, record: Issue | Drop | Batch) -> None:
        """Take the next record."""
        match record:
            case Issue():
                self._issue(record)
            case Drop(groups, reason):
                for n in groups:
                    self._drop(n, reason)
            case Batch():
                for group in record.groups:
                    self._train(group)
                for n, reason in record.dropped:
                    self._drop(n, reason)

    def drawn(self, n: int) -> tuple[str, Difficulty] | None:
        """Data source and difficulty of a group that is not settled on record."""
        drawn = self._open.get(n)
        return None if drawn is None else (self._source_of(drawn.row), drawn.difficulty)

    @property
    def draws(self) -> int:
        """Draws of the data order so far, issued and skipped."""
        return self._draws.next

    def _issue(self, issue: Issue) -> None:
        for draw in issue.skipped:
            self.rows[self._row_of(draw)].skipped += 1
        for n, draw in self._draws.take(issue):
            row = self._row_of(draw)
            self._open[n] = Drawn(row, self.rows[row].difficulty, self.chance(row))
        # Counted last: a record's own groups do not tell anything about the chances of its neighbours.
        for n in range(issue.first, issue.first + issue.count):
            self.rows[self._open[n].row].issued += 1

    def _train(self, group: BatchGroup) -> None:
        accs = [rollout.acc for rollout in group.rollouts]
        drawn = self._open.pop(group.n, None)
        if drawn is not None:
            mean = sum(accs) / len(accs)
            self._score(drawn, mean, _turn(accs), kept=True)

    def _drop(self, n: int, reason: DropReason) -> None:
        drawn = self._open.pop(n, None)
        if drawn is None:
            return  # a DROP record has told it already, and the next BATCH repeats it
        match reason:
            case DropReason.ALL_CORRECT:
                self._score(drawn, 1.0, 1, kept=False)
            case DropReason.ALL_WRONG:
                self._score(drawn, 0.0, -1, kept=False)
            case DropReason.UNIFORM:
                self._score(drawn, None, 0, kept=False)
            case _:
                pass  # no outcomes on record: it says nothing about the prompt

    def _score(self, drawn: Drawn, acc: float | None, turn: int, kept: bool) -> None:
        shown, weight = self.rows[drawn.row], 1 / drawn.chance
        shown.scored += 1
        shown.kept += kept
        before = self._lot(shown)
        shown.streak = (shown.streak if shown.streak * turn > 0 else 0) + turn
        self._move(before, self._lot(shown))
        if acc is not None:
            shown.judged += 1
            shown.acc_sum += acc
        sums = self.sums[self._source_of(drawn.row), drawn.difficulty]
        sums.scored += 1
        sums.kept += kept
        sums.scored_weight += weight
        sums.kept_weight += weight * kept

    def _move(self, before: DropReason | None, after: DropReason | None) -> None:
        for lot, change in ((before, -1), (after, 1)):
            if lot is not None:
                self.lots[lot] += change


def _turn(accs: Iterable[float]) -> int:
    """1: all correct, −1: all wrong, 0: neither. Without the filter such groups train."""
    outcomes = set(accs)
    return 1 if outcomes == {1.0} else -1 if outcomes == {0.0} else 0
