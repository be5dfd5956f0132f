"""Judging a file of responses with the verifiers and the worker pool of the service."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from services.reward.config import RewardSettings
from services.reward.pool import Pool
from sluice.errors import ConfigError
from sluice.types import ScoreItem, Verdict, VerdictKind

STRETCH = 1_000
"""Rows judged together: enough to keep every worker busy, few enough to hold in memory."""


async def score_file(path: Path, verifier: str, out: Path | None, settings: RewardSettings) -> int:
    """Judge every row of a JSON-lines file with `verifier`; a line a row goes to `out` (None: standard output).

    A row has `response` and `ground_truth`, and may have `prompt`, `data_source` (told to the verifier, it does not
    choose it), `extra_info` and `id`. A line of the
    result has `row` (from 1), `kind`, `score`, `acc`, `extracted`, `verifier` and `message`. A row that cannot be read
    has a line of kind `error` too, and one on standard error that names it. Returns 0, or 1 when such rows were there.
    Ends early, without a word, once nobody reads the result.

    Raises:
        ConfigError: the file cannot be read, `out` cannot be written, or there is no such verifier.
    """
    pool = Pool(settings.pool)
    with ExitStack() as files:
        try:
            source = files.enter_context(path.open("rb"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        try:
            await pool.start()
            if verifier not in pool.labels:
                raise ConfigError(f"--verifier {verifier!r} is none of: {', '.join(sorted(pool.labels))}")
            sink = sys.stdout if out is None else files.enter_context(_create(out))
            return await _score_rows(source, sink, verifier, pool)
        finally:
            await pool.close()


async def _score_rows(source: BinaryIO, sink: TextIO, verifier: str, pool: Pool) -> int:
    rows = _rows(source, verifier)
    bad = 0
    while stretch := list(islice(rows, STRETCH)):
        verdicts = iter(await pool.score([(verifier, row) for _, row in stretch if isinstance(row, ScoreItem)]))
        lines: list[str] = []
        for number, row in stretch:
            if isinstance(row, ScoreItem):
                verdict = next(verdicts)
            else:
                bad += 1
                verdict = Verdict(VerdictKind.ERROR, None, None, "", "", 0.0, row)
                print(row, file=sys.stderr)
            lines.append(json.dumps(_line(number, verdict)) + "\n")
        try:
            sink.writelines(lines)
            sink.flush()
        except BrokenPipeError:  # `| head` has what it wanted
            _discard(sink)
            break
    return 1 if bad else 0


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


def _rows(source: BinaryIO, verifier: str) -> Iterator[tuple[int, ScoreItem | str]]:
    """(number, item) of each row that is not blank, or (number, what is wrong with it)."""
    for number, line in enumerate(source, 1):
        if line.strip():
            try:
                yield number, _read(number, line, verifier)
            except ValueError as error:
                yield number, f"row {number}: {error}"


def _read(number: int, line: bytes, verifier: str) -> ScoreItem:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"of type {type(row).__name__}; it must be an object")
    extra = row.get("extra_info", {})
    return ScoreItem(
        id=str(row.get("id", number)),
        data_source=_text(row, "data_source", verifier),
        prompt=_text(row, "prompt", ""),
        response=_text(row, "response"),
        ground_truth=_truth(row),
        extra_info=extra if isinstance(extra, str) else json.dumps(extra),
        response_length=0,
    )


def _truth(row: dict[str, object]) -> str:
    truth = _text(row, "ground_truth")
    if not truth.strip():
        raise ValueError("ground_truth is empty")
    return truth


def _text(row: dict[str, object], name: str, default: str | None = None) -> str:
    value = row.get(name, default)
    if value is None:
        raise ValueError(f"{name} is missing")
    if not isinstance(value, str):
        raise ValueError(f"{name} is of type {type(value).__name__}; it must be a string")
    return value


def _line(number: int, verdict: Verdict) -> dict[str, object]:
    return {
        "row": number,
        "kind": verdict.kind,
        "score": verdict.score,
        "acc": verdict.acc,
        "extracted": verdict.extracted,
        "verifier": verdict.verifier,
        "message": verdict.message,
    }
