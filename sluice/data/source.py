"""Rows of the training files, checked one by one; a fault names file, row (from 1) and column.

The schema is that of DAPO-Math-17k, or a public set's own, or any other by `data.map_keys`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config.source import DataConfig, MappedKey
from sluice.data.formats import Record, fault, read_records
from sluice.data.styles import styled

REWARD_MODEL, EXTRA_INFO, DATA_SOURCE = "reward_model", "extra_info", "data_source"

_COLUMNS: dict[str, dict[MappedKey, str]] = {
    "dapo": {"prompt": "prompt"},
    "gsm8k": {"prompt": "question", "response": "answer"},
    "deepmath": {"prompt": "question", "response": "final_answer"},
    "problem_answer": {"prompt": "problem", "response": "answer"},
}
_SOURCES = {"gsm8k": "gsm8k", "deepmath": "math"}
"""data_source of the rows of a public set that has no such column: the verifier that fits it."""

Messages = tuple[tuple[str, str], ...]
"""(role, content) of each chat message."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as it stands in its file: `prompt` is a text or chat messages, `extra_info` a JSON object."""

    file: str
    row: int
    column: str
    """Where the prompt stands, for whoever finds a fault in it later."""
    prompt: str | Messages
    ground_truth: str
    data_source: str
    extra_info: str

    @property
    def content(self) -> str:
        """What makes two rows exact copies: the prompt, its ground truth and its data source."""
        return json.dumps([self.prompt, self.ground_truth, self.data_source])

    def fault(self, what: str) -> Exception:
        return fault(self.file, self.row, self.column, what)


def read_rows(file: str, path: Path, config: DataConfig, verifier: str | None) -> Iterator[SourceRow]:
    """The rows of one training file, in order, numbered from 1 as an editor does.

    Args:
        file: the name the run file has for it, which messages repeat.
        path: where it is on this machine.
        verifier: reward.verifier of the run; with one, rows need no data source.

    Raises:
        ConfigError: the file cannot be read, or a row breaks the schema.
    """
    schema = _Schema(config, verifier)
    for row, record in read_records(path):
        yield schema.read(file, row, record)


class _Schema:
    """Which column says what, and the checks of each."""

    def __init__(self, config: DataConfig, verifier: str | None) -> None:
        self._columns = _COLUMNS[config.row_format] | config.map_keys
        self._style = config.prompt_style
        self._source = verifier or _SOURCES.get(config.row_format)
        self._gsm8k = config.row_format == "gsm8k"

    def read(self, file: str, row: int, record: Record) -> SourceRow:
        column = self._columns["prompt"]
        return SourceRow(
            file=file,
            row=row,
            column=column,
            prompt=self._prompt(file, row, record),
            ground_truth=self._ground_truth(file, row, record),
            data_source=self._data_source(file, row, record),
            extra_info=self._extra_info(file, row, record),
        )

    def _prompt(self, file: str, row: int, record: Record) -> str | Messages:
        """Chat messages as they are; a text with its query after it, in the words of the style, under a system text."""
        column = self._columns["prompt"]
        value = _present(file, row, record, column)
        if isinstance(value, list):
            for key in ("query", "system"):
                if key in self._columns:
                    raise fault(file, row, column, f"has chat messages; data.map_keys.{key} only goes with a text")
            return _messages(file, row, column, value)
        if not isinstance(value, str):
            raise fault(file, row, column, f"is a {type(value).__name__}, not a string or a list of {{role, content}}")
        query = self._optional(file, row, record, "query")
        if not value.strip() and not query:
            raise fault(file, row, column, "is empty")
        text = styled(_text(file, row, column, f"{value}\n{query}" if query else value), self._style)
        system = self._optional(file, row, record, "system")
        return (("system", system), ("user", text)) if system else text

    def _optional(self, file: str, row: int, record: Record, key: MappedKey) -> str:
        """Text of a column that may be null; "" when it is, or when nothing is mapped to `key`."""
        column = self._columns.get(key)
        if column is None:
            return ""
        if column not in record:
            raise fault(file, row, column, f"is missing; data.map_keys.{key} names it")
        value = record[column]
        if value is not None and not isinstance(value, str):
            raise fault(file, row, column, f"is a {type(value).__name__}, not a string")
        return _text(file, row, column, value or "")

    def _ground_truth(self, file: str, row: int, record: Record) -> str:
        column = self._columns.get("response")
        if column is not None:
            truth = _truth(file, row, column, _present(file, row, record, column))
            return _after_marker(file, row, column, truth) if self._gsm8k else truth
        reward_model = _present(file, row, record, REWARD_MODEL)
        if not isinstance(reward_model, dict):
            raise fault(file, row, REWARD_MODEL, f"is a {type(reward_model).__name__}, not {{ground_truth, style}}")
        return _truth(file, row, f"{REWARD_MODEL}.ground_truth", reward_model.get("ground_truth"))

    def _data_source(self, file: str, row: int, record: Record) -> str:
        column = self._columns.get("data_source", DATA_SOURCE)
        value = record.get(column)
        if value is None and self._source is not None:
            return self._source
        if value is None:
            what = "is null" if column in record else "is missing"
            raise fault(file, row, column, f"{what}; set reward.verifier, or name the column in data.map_keys")
        if not isinstance(value, str):
            raise fault(file, row, column, f"is a {type(value).__name__}, not a string")
        return _text(file, row, column, value)

    def _extra_info(self, file: str, row: int, record: Record) -> str:
        """A JSON object; nobody but the verifier looks inside. Another schema keeps its other columns there."""
        extra = _object(file, row, record.get(EXTRA_INFO))
        if "response" in self._columns:
            used = {*self._columns.values(), DATA_SOURCE, EXTRA_INFO, REWARD_MODEL, "prompt"}
            extra = {column: value for column, value in record.items() if column not in used} | extra
        try:
            return json.dumps(extra, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise fault(file, row, EXTRA_INFO, f"cannot be written as JSON: {error}") from None


def _present(file: str, row: int, record: Record, column: str) -> Any:
    if column not in record:
        raise fault(file, row, column, f"is missing; the row has {sorted(record)}")
    if record[column] is None:
        raise fault(file, row, column, "is null")
    return record[column]


def _messages(file: str, row: int, column: str, value: list[Any]) -> Messages:
    messages = tuple(_message(file, row, column, message) for message in value)
    if not any(content.strip() for _, content in messages):
        raise fault(file, row, column, "is empty")
    return messages


def _message(file: str, row: int, column: str, message: Any) -> tuple[str, str]:
    fields = message if isinstance(message, dict) else {}
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise fault(file, row, column, f"message {message!r:.80} needs a role and a content, both strings")
    return _text(file, row, column, role), _text(file, row, column, content)


def _truth(file: str, row: int, column: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None:
        raise fault(file, row, column, "is null or missing")
    if not isinstance(value, str):
        raise fault(file, row, column, f"is {value!r:.80}; write it as the string that the verifier shall compare")
    if not value.strip():
        raise fault(file, row, column, "is empty")
    return _text(file, row, column, value)


def _after_marker(file: str, row: int, column: str, solution: str) -> str:
    """GSM8K gives the whole solution; the answer stands after its last ####."""
    truth = solution.rpartition("####")[2].strip()
    if not truth:
        raise fault(file, row, column, "has nothing after its last ####")
    return truth


def _object(file: str, row: int, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise fault(file, row, EXTRA_INFO, f"is a string but not JSON: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise fault(file, row, EXTRA_INFO, f"is a {type(value).__name__}, not an object")
    return value


def _text(file: str, row: int, column: str, text: str) -> str:
    """JSON can spell half a surrogate pair, which no wire format carries."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise fault(file, row, column, f"is not valid Unicode: {error}") from None
    return text
