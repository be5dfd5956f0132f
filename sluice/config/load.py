"""From a file or nested tables to a RunSpec, with one line for all faults."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluice.config.run import RunSpec
from sluice.errors import ConfigError
from sluice.faults import in_plain_words


def parse_run_spec(fields: dict[str, Any]) -> RunSpec:
    """Validate a run given as nested tables.

    Raises:
        ConfigError: one line that names every wrong field with its value.
    """
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        raise ConfigError("; ".join(_fault(e) for e in error.errors())) from None


def load_run_spec(path: Path) -> RunSpec:
    """Read a run file. Relative paths in it are relative to the working folder.

    Raises:
        ConfigError: the file is missing, is not TOML, or a field is wrong.
    """
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"run file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} is not TOML: {error}") from None
    return parse_run_spec(fields)


def _fault(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{field}: no such field; see docs/configuration.md for the list"
    words = in_plain_words(error)
    if error["type"] == "missing":
        return f"{field}: {words}"
    return f"{field} = {error['input']!r}: {words}" if field else words
