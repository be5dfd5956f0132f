"""Judging files with the verifiers and the worker pool of the service: verdicts, a comparison, a check of truths."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from services.reward.agreement import is_right, outcome
from services.reward.config import RewardSettings
from services.reward.mixture import Mixture, combine, parse_mixture
from services.reward.pool import Pool
from services.reward.routing import Routes
from services.reward.rows import Columns, Row, read_rows
from services.reward.truths import truth_faults
from sluice.errors import ConfigError
from sluice.types import NO_ANSWER, ScoreItem, Verdict, VerdictKind

BY_DATA_SOURCE = "by-data-source"
STRETCH = 1_000
"""Rows judged together: enough to keep every worker busy, few enough to hold in memory."""


@dataclass(frozen=True, slots=True)
class _Desk:
    """A started pool, the file to judge and where its lines go."""

    pool: Pool
    source: BinaryIO
    sink: TextIO

    async def judge(self, mixture: Mixture, rows: Sequence[tuple[int, Row]]) -> list[Verdict]:
        """A verdict a row; one that could not be read has the verdict `error`, and is named on standard error."""
        items = [row for _, row in rows if isinstance(row, ScoreItem)]
        answers = iter(await self.pool.score([(part.verifier, item) for item in items for part in mixture]))
        return [
            combine(mixture, [next(answers) for _ in mixture]) if isinstance(row, ScoreItem) else _unread(row)
            for _, row in rows
        ]

    def write(self, lines: Sequence[object]) -> bool:
        """False once nobody reads the lines any more."""
        try:
            self.sink.writelines(json.dumps(line) + "\n" for line in lines)
            self.sink.flush()
        except BrokenPipeError:  # `| head` has what it wanted
            _discard(self.sink)
            return False
        return True


async def score_file(path: Path, verifier: str, out: Path | None, settings: RewardSettings) -> int:
    """Judge every row of a JSON-lines file with `verifier`; a line a row goes to `out` (None: standard output).

    A row has `response` and `ground_truth`, and may have `prompt`, `data_source` (told to the verifier, it does not
    choose it), `extra_info` and `id`. A line of the result has `row` (from 1), `kind`, `score`, `acc`, `extracted`,
    `verifier`, `seconds` and `message`. A row that cannot be read has a line of kind `error` too, and one on standard
    error that names it. Returns 0, or 1 when such rows were there. Ends early, without a word, once nobody reads the
    result.

    Raises:
        ConfigError: the file cannot be read, `out` cannot be written, or there is no such verifier.
    """
    async with _desk(path, out, settings, {"--verifier": verifier}) as (desk, (mixture,)):
        rows = read_rows(desk.source, Columns(verifier))
        bad = 0
        while stretch := list(islice(rows, STRETCH)):
            verdicts = await desk.judge(mixture, stretch)
            bad += _complain(stretch)
            if not desk.write([_line(number, verdict) for (number, _), verdict in zip(stretch, verdicts, strict=True)]):
                break
        return 1 if bad else 0


async def check_file(path: Path, verifier: str, out: Path | None, settings: RewardSettings) -> int:
    """Say which rows' ground truths `verifier` cannot judge by; `response` may be missing. Returns 1 if there are any.

    BY_DATA_SOURCE asks the verifier that each row's `data_source` leads to.

    A line goes to `out` for each such row only: `row`, `ground_truth`, `message`.

    Raises:
        ConfigError: as `score_file`.
    """
    asked = {} if verifier == BY_DATA_SOURCE else {"--check-truths": verifier}
    async with _desk(path, out, settings, asked) as (desk, mixtures):
        routes = Routes(desk.pool.labels, settings.routes)
        rows = read_rows(desk.source, Columns(verifier, response=False))
        bad = 0
        while stretch := list(islice(rows, STRETCH)):
            bad += _complain(stretch)
            items = [(number, row) for number, row in stretch if isinstance(row, ScoreItem)]
            found = [mixtures[0] if mixtures else routes.find(row.data_source) for _, row in items]
            faults = await truth_faults(desk.pool, [row for _, row in items], found)
            refused = [
                {"row": number, "ground_truth": row.ground_truth, "message": fault}
                for (number, row), fault in zip(items, faults, strict=True)
                if fault
            ]
            bad += len(refused)
            if not desk.write(refused):
                break
        return 1 if bad else 0


@dataclass(slots=True)
class _Tally:
    """How two verifiers judged the same rows."""

    names: tuple[str, str]
    outcomes: Counter[str] = field(default_factory=Counter)
    without_answer: tuple[Counter[bool], Counter[bool]] = field(default_factory=lambda: (Counter(), Counter()))

    def add(self, first: Verdict, second: Verdict) -> None:
        self.outcomes[outcome(first, second)] += 1
        for counter, verdict in zip(self.without_answer, (first, second), strict=True):
            counter[verdict.extracted == NO_ANSWER] += verdict.kind is VerdictKind.SCORED

    def report(self) -> dict[str, object]:
        counts = {name: self.outcomes[name] for name in ("both_right", "both_wrong", "only_first", "only_second")}
        scored = sum(counts.values())
        agreed = counts["both_right"] + counts["both_wrong"]
        right = [counts["both_right"] + counts[f"only_{which}"] for which in ("first", "second")]
        return {
            "compared": list(self.names),
            "rows": scored + self.outcomes["failed"],
            **counts,
            "failed": self.outcomes["failed"],
            "agreement": round(agreed / scored, 6) if scored else None,
            "kappa": _kappa(scored, agreed, right),
            "accuracy": [round(count / scored, 6) if scored else None for count in right],
            "without_answer": [counter[True] for counter in self.without_answer],
        }


def _kappa(scored: int, agreed: int, right: Sequence[int]) -> float | None:
    """Cohen's kappa: agreement beyond what two verifiers with these accuracies would reach by chance."""
    if not scored:
        return None
    by_chance = (right[0] * right[1] + (scored - right[0]) * (scored - right[1])) / scored**2
    return round((agreed / scored - by_chance) / (1 - by_chance), 6) if by_chance < 1 else 1.0


async def compare_file(path: Path, names: Sequence[str], out: Path | None, settings: RewardSettings) -> int:
    """Judge every row with two verifiers; a line for each disagreement, and at the end one with the report.

    Returns 1 when a row could not be read, else 0.

    Raises:
        ConfigError: as `score_file`.
    """
    first, second = names
    async with _desk(path, out, settings, {"--compare A": first, "--compare B": second}) as (desk, (one, other)):
        tally = _Tally((first, second))
        rows = read_rows(desk.source, Columns(first))
        bad = 0
        while stretch := list(islice(rows, STRETCH)):
            bad += _complain(stretch)
            readable = [(number, row) for number, row in stretch if isinstance(row, ScoreItem)]
            lines = []
            pairs = zip(readable, await desk.judge(one, readable), await desk.judge(other, readable), strict=True)
            for (number, row), a, b in pairs:
                tally.add(a, b)
                if a.kind != b.kind or is_right(a) != is_right(b):
                    lines.append(_disagreement(number, row.ground_truth, a, b))
            if not desk.write(lines):
                return 0
        desk.write([tally.report()])
        return 1 if bad else 0


@asynccontextmanager
async def _desk(
    path: Path, out: Path | None, settings: RewardSettings, asked: dict[str, str]
) -> AsyncIterator[tuple[_Desk, list[Mixture]]]:
    async with AsyncExitStack() as stack:
        try:
            source = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        pool = Pool(settings.pool)
        stack.push_async_callback(pool.close)
        await pool.start()
        mixtures = [_mixture(option, name, pool) for option, name in asked.items()]
        sink = sys.stdout if out is None else stack.enter_context(_create(out))
        yield _Desk(pool, source, sink), mixtures


def _mixture(option: str, name: str, pool: Pool) -> Mixture:
    mixture = parse_mixture(name, pool.labels)
    if mixture is None:
        raise ConfigError(f"{option} {name!r} is none of: {', '.join(sorted(pool.labels))}")
    return mixture


def _complain(rows: Sequence[tuple[int, Row]]) -> int:
    """Name the rows that could not be read on standard error; returns how many they are."""
    wrong = [row for _, row in rows if isinstance(row, str)]
    for line in wrong:
        print(line, file=sys.stderr)
    return len(wrong)


def _unread(fault: str) -> Verdict:
    return Verdict(VerdictKind.ERROR, None, None, "", "", 0.0, fault)


def _discard(sink: TextIO) -> None:
    """Send what is still buffered to nowhere: closing the file would fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sink.fileno())
    os.close(nowhere)


def _create(out: Path) -> TextIO:
    try:
        return out.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None


def _line(number: int, verdict: Verdict) -> dict[str, object]:
    return {
        "row": number,
        "kind": verdict.kind,
        "score": verdict.score,
        "acc": verdict.acc,
        "extracted": verdict.extracted,
        "verifier": verdict.verifier,
        "seconds": round(verdict.seconds, 6),
        "message": verdict.message,
    }


def _disagreement(number: int, truth: str, first: Verdict, second: Verdict) -> dict[str, object]:
    return {
        "row": number,
        "ground_truth": truth,
        "acc": [first.acc, second.acc],
        "extracted": [first.extracted, second.extracted],
        "message": [first.message, second.message],
    }
