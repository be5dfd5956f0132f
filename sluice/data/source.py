"""Rows of the training files in the DAPO-Math-17k schema, checked one by one; a fault names file, row and column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.errors import ConfigError

DATA_SOURCE, REWARD_MODEL, EXTRA_INFO = "data_source", "reward_model", "extra_info"
READ_ROWS = 4096

Messages = tuple[tuple[str, str], ...]
"""(role, content) of each chat message."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as it stands in its file: `prompt` is a text or chat messages, `extra_info` a JSON object."""

    file: str
    row: int
    prompt: str | Messages
    ground_truth: str
    data_source: str
    extra_info: str

    @property
    def content(self) -> str:
        """What makes two rows exact copies: the prompt, its ground truth and its data source."""
        return json.dumps([self.prompt, self.ground_truth, self.data_source])


def read_rows(file: str, prompt_key: str) -> Iterator[SourceRow]:
    """The rows of one training file, in order, numbered from 1 as an editor does.

    Raises:
        ConfigError: the file cannot be read, or a row breaks the schema.
    """
    path = Path(file)
    if path.suffix == ".parquet":
        records = _parquet_records(path, prompt_key)
    elif path.suffix in (".jsonl", ".json"):
        records = _jsonl_records(path)
    else:
        raise ConfigError(f"data.train_files: {file} is neither .parquet nor .jsonl")
    for row, record in records:
        yield _source_row(file, row, record, prompt_key)


def fault(file: str | Path, row: int, column: str, what: str) -> ConfigError:
    return ConfigError(f"{file}: row {row}, column {column!r}: {what}")


def _parquet_records(path: Path, prompt_key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    wanted = [prompt_key, DATA_SOURCE, REWARD_MODEL, EXTRA_INFO]
    try:
        file = pq.ParquetFile(path)
    except OSError as error:
        raise ConfigError(f"data.train_files: {path}: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise ConfigError(f"data.train_files: {path} is not a parquet file: {error}") from None
    with file:
        present = set(file.schema_arrow.names)
        for column in wanted[:3]:
            if column not in present:
                raise ConfigError(f"{path}: column {column!r} is missing; it has {sorted(present)}")
        yield from _batched(path, file, [column for column in wanted if column in present])


def _batched(path: Path, file: pq.ParquetFile, columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    row = 1
    try:
        for batch in file.iter_batches(READ_ROWS, columns=columns):
            for record in _decoded(path, row, batch):
                yield row, record
                row += 1
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: cannot be read from row {row} on: {error}") from None


def _decoded(path: Path, first: int, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        for offset in range(batch.num_rows):
            for column in batch.schema.names:
                _decode_cell(path, first + offset, column, batch.column(column)[offset])
        raise


def _decode_cell(path: Path, row: int, column: str, cell: Any) -> None:
    try:
        cell.as_py()
    except UnicodeDecodeError as error:
        raise fault(path, row, column, f"is not UTF-8: {error}") from None


def _jsonl_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as lines:
            for row, line in enumerate(lines, start=1):
                if line.strip():
                    yield row, _json_record(path, row, line)
    except OSError as error:
        raise ConfigError(f"data.train_files: {path}: {error.strerror}") from None


def _json_record(path: Path, row: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: row {row} is not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: row {row} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{path}: row {row} is a JSON {type(record).__name__}, not an object")
    return record


def _source_row(file: str, row: int, record: dict[str, Any], prompt_key: str) -> SourceRow:
    for column in (prompt_key, DATA_SOURCE, REWARD_MODEL):
        if record.get(column) is None:
            raise fault(file, row, column, "is null" if column in record else "is missing")
    data_source = record[DATA_SOURCE]
    if not isinstance(data_source, str):
        raise fault(file, row, DATA_SOURCE, f"is a {type(data_source).__name__}, not a string")
    return SourceRow(
        file=file,
        row=row,
        prompt=_prompt(file, row, prompt_key, record[prompt_key]),
        ground_truth=_ground_truth(file, row, record[REWARD_MODEL]),
        data_source=_text(file, row, DATA_SOURCE, data_source),
        extra_info=_extra_info(file, row, record.get(EXTRA_INFO)),
    )


def _prompt(file: str, row: int, column: str, value: Any) -> str | Messages:
    if isinstance(value, str):
        if not value.strip():
            raise fault(file, row, column, "is empty")
        return _text(file, row, column, value)
    if not isinstance(value, list):
        raise fault(file, row, column, f"is a {type(value).__name__}, not a string or a list of {{role, content}}")
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


def _ground_truth(file: str, row: int, reward_model: Any) -> str:
    if not isinstance(reward_model, dict):
        raise fault(file, row, REWARD_MODEL, f"is a {type(reward_model).__name__}, not {{ground_truth, style}}")
    column = f"{REWARD_MODEL}.ground_truth"
    value = reward_model.get("ground_truth")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or value == "":
        raise fault(file, row, column, "is empty" if value == "" else "is null or missing")
    if not isinstance(value, str):
        raise fault(file, row, column, f"is {value!r:.80}; write it as the string that the verifier shall compare")
    if not value.strip():
        raise fault(file, row, column, "is empty")
    return _text(file, row, column, value)


def _extra_info(file: str, row: int, value: Any) -> str:
    """The column as a JSON object; nobody but the verifier looks inside."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise fault(file, row, EXTRA_INFO, f"is a string but not JSON: {error}") from None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise fault(file, row, EXTRA_INFO, f"is a {type(value).__name__}, not an object")
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise fault(file, row, EXTRA_INFO, f"cannot be written as JSON: {error}") from None


def _text(file: str, row: int, column: str, text: str) -> str:
    """JSON can spell half a surrogate pair, which no wire format carries."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise fault(file, row, column, f"is not valid Unicode: {error}") from None
    return text
