"""A checkpoint for another number of ranks: DeepSpeed's universal form of it, made once and kept beside it.

`<k>.<lineage>.universal/` holds the masters and moments parameter by parameter, whole, and a manifest like that of the
checkpoint itself. It can be made again from the checkpoint at any time, so whatever is wrong with it, it is made again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from services.trainer.checkpoint import ENGINE_FOLDER, FORMAT, UNIVERSAL_SUFFIX, facts_of_files, make_durable
from sluice.errors import PermanentError
from sluice.telemetry import Logger
from sluice.types import Checkpoint
from sluice.wire.checkpoint import MANIFEST_FILE

CONVERSION_SECONDS = 3600.0
CONVERSION = """
import sys
from argparse import Namespace
from deepspeed.checkpoint.ds_to_universal import main

main(Namespace(input_folder=sys.argv[1], output_folder=sys.argv[2], num_extract_workers=1, num_merge_workers=1,
               keep_temp_folder=False, strict=True, inject_missing_state=True))
"""


def universal_form(record: Checkpoint, log: Logger, root: Path | None = None) -> Path:
    """Folder with the universal form of a verified checkpoint: the one that is there, if it is whole, or a new one.

    It takes as much disk as the checkpoint, and once more while it is made. It lies beside the checkpoint, or in
    `root`, if the checkpoint is somebody else's.

    Raises:
        PermanentError: DeepSpeed cannot convert it; the text says why.
        OSError: the disk is full or gone; nothing new is left then.
    """
    name = Path(record.path).name + UNIVERSAL_SUFFIX
    folder = (root or Path(record.path).parent) / name
    if folder.exists():
        if _is_whole(folder, record):
            return folder
        log.warning("universal_checkpoint_unusable", path=str(folder))
        shutil.rmtree(folder)
    log.info("checkpoint_conversion_started", path=record.path)
    staging = folder.with_name(f".{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        _convert(Path(record.path) / ENGINE_FOLDER, staging)
        manifest = {"format": FORMAT, "checkpoint": record.checksum, "files": facts_of_files(staging)}
        (staging / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
        make_durable(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    log.info("checkpoint_converted", path=str(folder))
    return folder


def _convert(source: Path, target: Path) -> None:
    """In a process of its own: DeepSpeed's converter prints, draws bars and takes memory that it should give back."""
    command = [sys.executable, "-c", CONVERSION, str(source), str(target / ENGINE_FOLDER)]
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}
    failed = f"checkpoint {source.parent} cannot be converted for another number of ranks"
    try:
        ended = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=CONVERSION_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise PermanentError(f"{failed} within {CONVERSION_SECONDS:.0f} s") from None
    if ended.returncode:
        why = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        raise PermanentError(f"{failed}: {why}")
    (target / "latest_universal").unlink()  # a pointer for programs that look for the newest; ours is told which


def _is_whole(folder: Path, record: Checkpoint) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
        expected = {"format": FORMAT, "checkpoint": record.checksum, "files": facts_of_files(folder)}
    except (OSError, ValueError):
        return False
    return bool(manifest == expected)
