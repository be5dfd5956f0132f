"""Rows of responses in a JSON-lines file, each read or refused by its number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from sluice.types import ScoreItem

Row = ScoreItem | str
"""An item, or one line that says what is wrong with the row."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What a row must have: `response` may be left out where only ground truths are looked at."""

    data_source: str
    response: bool = True


def read_rows(source: BinaryIO, columns: Columns) -> Iterator[tuple[int, Row]]:
    """(number, item) of each row that is not blank, or (number, what is wrong with it)."""
    for number, line in enumerate(source, 1):
        if line.strip():
            try:
                yield number, _read(number, line, columns)
            except ValueError as error:
                yield number, f"row {number}: {error}"


def _read(number: int, line: bytes, columns: Columns) -> ScoreItem:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"of type {type(row).__name__}; it must be an object")
    extra = row.get("extra_info", {})
    prompt = row.get("prompt", "")
    return ScoreItem(
        id=str(row.get("id", number)),
        data_source=_text(row, "data_source", columns.data_source),
        prompt=prompt if isinstance(prompt, str) else json.dumps(prompt),
        response=_text(row, "response", None if columns.response else ""),
        ground_truth=_truth(row),
        extra_info=extra if isinstance(extra, str) else json.dumps(extra),
        response_length=0,
    )


def _truth(row: dict[str, object]) -> str:
    nested = row.get("reward_model")
    truth = _text(nested if "ground_truth" not in row and isinstance(nested, dict) else row, "ground_truth")
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
