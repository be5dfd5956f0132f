"""From a file or nested tables to a RunSpec, with one line for all faults."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluice.config.run import RunSpec
from sluice.errors import ConfigError
from sluice.faults import in_plain_words, without_echoes

UNSET = "unset"
EXTENDS = "extends"
"""Key of a run file that names another one: what is not said here is as it is there."""


def parse_run_spec(fields: dict[str, Any]) -> RunSpec:
    """Validate a run given as nested tables.

    Raises:
        ConfigError: one line that names every wrong field with its value.
    """
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        raise ConfigError("; ".join(map(_fault, without_echoes(error.errors())))) from None


def changed(spec: RunSpec, fields: dict[str, Any]) -> RunSpec:
    """The spec with these nested tables put over it, field by field.

    Raises:
        ConfigError: one line that names every wrong field with its value.
    """
    return parse_run_spec(_over(spec.model_dump(mode="json"), fields))


def load_run_spec(path: Path) -> RunSpec:
    """Read a run file. Relative paths in it are relative to the working folder, but that of `extends` to the file.

    Raises:
        ConfigError: the file is missing, is not TOML, extends itself, or a field is wrong.
    """
    return parse_run_spec(_with_unset(_fields(path, ())))


def _fields(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    """The tables of a run file, over those of the file that it extends."""
    if path.resolve() in extended_by:
        raise ConfigError(f"run file {path} extends itself, through {' and '.join(map(str, extended_by))}")
    fields = _read(path)
    base = fields.pop(EXTENDS, None)
    if base is None:
        return fields
    if not isinstance(base, str):
        raise ConfigError(f"run file {path}: {EXTENDS} = {base!r} must be the path of another run file")
    return _over(_fields(path.parent / base, (*extended_by, path.resolve())), fields)


def _over(base: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Sections are merged field by field; everything else replaces what was there."""
    merged = dict(base)
    for key, value in fields.items():
        below = base.get(key)
        merged[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _with_unset(fields: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: the text "unset" stands for it, also in lists of tables."""
    return {key: _unset(value) for key, value in fields.items()}


def _unset(value: Any) -> Any:
    if isinstance(value, dict):
        return _with_unset(value)
    if isinstance(value, list):
        return [_with_unset(entry) if isinstance(entry, dict) else entry for entry in value]
    return None if value == UNSET else value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"run file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} is not TOML: {error}") from None


def _fault(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{field}: no such field; see docs/configuration.md for the list"
    words = in_plain_words(error)
    if error["type"] == "missing":
        return f"{field}: {words}"
    if isinstance(error["input"], dict) and error["type"] == "value_error":  # a rule between fields, which it names
        return f"{field}: {words}" if field else words
    return f"{field} = {error['input']!r}: {words}" if field else words
