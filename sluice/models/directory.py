"""Model directories that are either complete or absent.

A maker writes into a temporary directory beside the target, adds a fingerprint file last and renames. So a cut
run never leaves half a model, and a second call with the same recipe returns at once.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

FINGERPRINT_FILE = "fingerprint.json"


def build_once(target: Path, recipe: Mapping[str, str | int], build: Callable[[Path], None]) -> bool:
    """Let `build` fill `target`, unless `target` already holds the outcome of `recipe`.

    Returns True when the model was built by this call. Raises FileExistsError when `target` holds files that no
    maker wrote, because replacing them could destroy somebody's model.
    """
    if is_complete(target, recipe):
        return False
    if target.exists() and any(target.iterdir()) and not (target / FINGERPRINT_FILE).is_file():
        raise FileExistsError(
            f"{target} holds files but no {FINGERPRINT_FILE}, so no model maker wrote it: choose another --out"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build(staging)
        _write_fingerprint(staging, recipe)
        _open_to_readers(staging)
        _move_into_place(staging, target, recipe)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def is_complete(target: Path, recipe: Mapping[str, str | int]) -> bool:
    """Whether `target` has the recipe's fingerprint and every file it names, in full length."""
    try:
        fingerprint = json.loads((target / FINGERPRINT_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return False
    if fingerprint.get("recipe") != dict(recipe):
        return False
    files: dict[str, dict[str, str | int]] = fingerprint["files"]
    return all(
        (target / name).is_file() and (target / name).stat().st_size == facts["bytes"] for name, facts in files.items()
    )


def _write_fingerprint(staging: Path, recipe: Mapping[str, str | int]) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(staging.iterdir())
    }
    text = json.dumps({"recipe": dict(recipe), "files": files}, indent=2, sort_keys=True)
    (staging / FINGERPRINT_FILE).write_text(text + "\n", encoding="utf-8")


def _open_to_readers(staging: Path) -> None:
    """Temporary directories and safetensors files are private to their owner; other services read the model too."""
    staging.chmod(0o755)
    for path in staging.iterdir():
        path.chmod(0o644)


def _move_into_place(staging: Path, target: Path, recipe: Mapping[str, str | int]) -> None:
    if target.exists():
        # An older recipe's model: a directory with files cannot be renamed over.
        replaced = Path(tempfile.mkdtemp(prefix=f".{target.name}-replaced-", dir=target.parent))
        os.rename(target, replaced)
        shutil.rmtree(replaced)
    try:
        os.rename(staging, target)
    except OSError:
        # Another maker was faster: its model is as good as ours.
        if not is_complete(target, recipe):
            raise
