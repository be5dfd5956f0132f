"""What a run trains on, for its record: the files with their hashes, what was left out, and a hash of all prompts."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sluice.config import RunSpec
from sluice.data.formats import data_files
from sluice.data.table import PromptTable
from sluice.errors import ConfigError
from sluice.locations import locate

FINGERPRINT = "fingerprint"


def manifest_of(spec: RunSpec, table: PromptTable) -> dict[str, Any]:
    """JSON object: `fingerprint` and number of the prompts, counts of what was read, and size and SHA-256 of each file.

    Raises:
        ConfigError: a file is not there any more.
    """
    return {
        FINGERPRINT: table.fingerprint,
        "prompts": len(table),
        "counts": asdict(table.counts),
        "files": [entry for file in spec.data.train_files for entry in _entries(file)],
    }


def same_prompts(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two manifests are of the same prompts in the same order."""
    return one.get(FINGERPRINT) is not None and one.get(FINGERPRINT) == other.get(FINGERPRINT)


def check_unchanged(manifest: dict[str, Any], table: PromptTable) -> None:
    """Refuse to go on with other prompts than the run began with.

    Raises:
        ConfigError: the table's fingerprint is not the recorded one.
    """
    recorded = manifest.get(FINGERPRINT)
    if recorded is not None and recorded != table.fingerprint:
        raise ConfigError(
            f"data.train_files: the prompts have changed since the run was created: fingerprint {table.fingerprint}, "
            f"recorded {recorded} for {manifest.get('prompts')} prompts; put the files or the tokenizer back, or "
            "create a new run"
        )


def _entries(file: str) -> list[dict[str, Any]]:
    paths = data_files(locate(file, "dataset", "data.train_files"))
    return [{"file": file, "path": str(path), "bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths]


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"data file {path}: {error.strerror or error}") from None
