"""Files of rows: parquet, JSONL, JSON, CSV and folders that Hugging Face's `datasets` saved. What a row means is read
in `source.py`; here a fault names the file and the row, numbered from 1.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.errors import ConfigError

READ_ROWS = 4096
LONGEST_CSV_CELL = 1 << 24
"""Bytes. Python's own limit of 128 KiB is shorter than some prompts."""

Record = dict[str, Any]
Numbered = Iterator[tuple[int, Record]]
"""Rows with their numbers in the file, from 1."""


def read_records(path: Path) -> Numbered:
    """All rows of one file, or of one folder that `datasets` saved, in order.

    Raises:
        ConfigError: nothing is there, the format is not known, or a row cannot be read.
    """
    if path.is_dir():
        return _saved_dataset(path)
    readers = {".parquet": _parquet, ".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".arrow": _arrow}
    reader = readers.get(path.suffix)
    if reader is None:
        raise ConfigError(f"data file {path}: is none of {', '.join(readers)}, nor a folder saved by `datasets`")
    return reader(path)


def data_files(path: Path) -> list[Path]:
    """The files that hold the rows: `path` itself, or those of a folder that `datasets` saved.

    Raises:
        ConfigError: the folder is no saved data set, or has several splits.
    """
    if not path.is_dir():
        return [path]
    if (path / "state.json").is_file():
        names = [entry["filename"] for entry in _object(path / "state.json").get("_data_files", [])]
        return [path / name for name in names]
    if (path / "dataset_dict.json").is_file():
        splits = sorted(child.name for child in path.iterdir() if child.is_dir())
        raise ConfigError(f"data file {path}: has the splits {', '.join(splits)}; name one, e.g. {path / splits[0]}")
    if parts := sorted(path.rglob("*.parquet")):
        return parts
    raise ConfigError(f"data file {path}: a folder without state.json (saved by `datasets`) or *.parquet files")


def _saved_dataset(path: Path) -> Numbered:
    row = 0
    for file in data_files(path):
        for _, record in read_records(file):
            row += 1
            yield row, record


def _parquet(path: Path) -> Numbered:
    try:
        file = pq.ParquetFile(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    except pa.ArrowException as error:
        raise ConfigError(f"data file {path}: is not a parquet file: {error}") from None
    with file:
        yield from _decoded(path, file.iter_batches(READ_ROWS))


def _arrow(path: Path) -> Numbered:
    """`datasets` writes the stream form of Arrow's interprocess format."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            yield from _decoded(path, iter(stream))
    except OSError as error:
        raise _unreadable(path, error) from None
    except pa.ArrowException as error:
        raise ConfigError(f"data file {path}: is not an Arrow stream: {error}") from None


def _decoded(path: Path, batches: Iterator[pa.RecordBatch]) -> Numbered:
    row = 1
    try:
        for batch in batches:
            for record in _rows_of(path, row, batch):
                yield row, record
                row += 1
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"data file {path}: cannot be read from row {row} on: {error}") from None


def _rows_of(path: Path, first: int, batch: pa.RecordBatch) -> list[Record]:
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


def _jsonl(path: Path) -> Numbered:
    try:
        with path.open("rb") as lines:
            for row, line in enumerate(lines, start=1):
                if line.strip():
                    yield row, _json_record(path, row, line)
    except OSError as error:
        raise _unreadable(path, error) from None


def _json(path: Path) -> Numbered:
    """A list of objects; a .json file with an object a line is read as JSONL."""
    try:
        with path.open("rb") as file:
            opening = file.read(1 << 16).lstrip()[:1]
            file.seek(0)
            if opening != b"[":
                yield from _jsonl(path)
                return
            rows = json.loads(file.read().decode("utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise ConfigError(f"data file {path}: is not JSON: {error}") from None
    for row, record in enumerate(rows, start=1):
        yield row, _object_of(path, row, record)


def _csv(path: Path) -> Numbered:
    """The first line names the columns; an empty cell is null. Every cell is a text."""
    csv.field_size_limit(LONGEST_CSV_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for row, record in enumerate(csv.DictReader(lines, strict=True), start=1):
                if None in record or None in record.values():
                    raise ConfigError(f"{path}: row {row} has another number of cells than the first line")
                yield row, {column: text or None for column, text in record.items()}
    except OSError as error:
        raise _unreadable(path, error) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"data file {path}: is not CSV in UTF-8: {error}") from None


def _json_record(path: Path, row: int, line: bytes) -> Record:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: row {row} is not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: row {row} is not JSON: {error}") from None
    return _object_of(path, row, record)


def _object_of(path: Path, row: int, record: Any) -> Record:
    if not isinstance(record, dict):
        raise ConfigError(f"{path}: row {row} is a JSON {type(record).__name__}, not an object")
    return record


def _object(path: Path) -> Record:
    try:
        return _object_of(path, 1, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"data file {path}: {error}") from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"data file {path}: {error.strerror or error}")


def fault(file: str | Path, row: int, column: str, what: str) -> ConfigError:
    return ConfigError(f"{file}: row {row}, column {column!r}: {what}")
