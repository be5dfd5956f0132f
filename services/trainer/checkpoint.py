"""Checkpoints on disk: complete, durable and verifiable, or not there.

`<data>/checkpoints/<run>/<k>.<lineage>/` holds what DeepSpeed wrote, `ledger.bin` with the LEDGER record that created
the run and those since the previous checkpoint, and `manifest.json` that names every file with its size and checksum.
The checksum of the manifest is in the CHECKPOINT record, so the record vouches for all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sluice.config import CheckpointConfig
from sluice.errors import PermanentError
from sluice.types import Checkpoint
from sluice.wire.checkpoint import LEDGER_FILE, MANIFEST_FILE, checksum, pack_ledger

FORMAT = 1
ENGINE_FOLDER = "engine"
"""In a checkpoint: what DeepSpeed wrote, in the form of this number of ranks or in the universal one."""
UNIVERSAL_SUFFIX = ".universal"
"""Of the folder beside a checkpoint that holds its universal form."""
READ_BYTES = 8 << 20
BEST = "best"
"""Name of the link to the best checkpoint by checkpoint.keep_best."""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """Batches below `k` are in these weights, and nothing else is."""

    run_id: str
    k: int
    lineage: int
    chain: str
    """Hex of h(k)."""
    ledger_sequence: int
    """The last LEDGER record that has been acted on."""
    config_hash: str
    optimizer_updates: int
    world_size: int
    """DeepSpeed's shards are as many; other numbers of ranks read the universal form (`universal.py`)."""
    updated_steps: int | None = None
    """Training steps that made an update: where the learning rate stands. None: written before it was kept."""
    lora: dict[str, Any] | None = None
    """The settings of the adapters in it, and their base (`adapters.py`). None: it holds all weights."""
    format: int = FORMAT
    files: dict[str, dict[str, Any]] | None = None
    """Relative path → `bytes` and `blake2b` (hex, 256 bits); filled in when it is written."""


class CheckpointStore:
    """The checkpoints of one run. Only rank 0 uses it; all ranks write into the folder that `begin` names."""

    def __init__(self, root: Path, run_id: str) -> None:
        self._root = root / run_id

    def begin(self, k: int, lineage: int) -> Path:
        """An empty folder with a temporary name; leftovers of dead writers go."""
        self._root.mkdir(parents=True, exist_ok=True)
        for leftover in self._root.glob(".*"):
            shutil.rmtree(leftover)
        folder = self._root / f".{k}.{lineage}"
        folder.mkdir()
        return folder

    def commit(self, folder: Path, manifest: CheckpointManifest, records: Sequence[tuple[int, bytes]]) -> Checkpoint:
        """Add ledger copy and manifest, make everything durable, and rename. Returns the record to be stored."""
        (folder / LEDGER_FILE).write_bytes(pack_ledger(records))
        described = replace(manifest, files=facts_of_files(folder))
        text = json.dumps(asdict(described), indent=1, sort_keys=True).encode()
        (folder / MANIFEST_FILE).write_bytes(text)
        final = self._root / f"{manifest.k}.{manifest.lineage}"
        make_durable(folder, final)
        return Checkpoint(manifest.k, manifest.lineage, str(final), checksum(text), manifest.chain)

    def prune(
        self, records: Sequence[Checkpoint], rule: CheckpointConfig, wanted: Collection[str] = ()
    ) -> list[Checkpoint]:
        """Keep those of these checkpoints (oldest first) that the rule keeps, and return them; all other folders go.

        `wanted` are names, `k.lineage`, of those that stay whatever the rule says.

        Those are older ones, damaged ones, and what a trainer sealed that died before it could record it. A universal
        form stays as long as its checkpoint.
        """
        ruled = to_keep(records, rule)
        kept = [record for record in records if record in ruled or Path(record.path).name in wanted]
        paths = {record.path for record in kept}
        for folder in self._root.glob("[0-9]*.[0-9]*"):
            if str(folder).removesuffix(UNIVERSAL_SUFFIX) not in paths:
                shutil.rmtree(folder)
        return kept

    def mark_best(self, record: Checkpoint) -> None:
        """Have the name `best` point at this checkpoint; at every moment it points at one, or is not there."""
        part = self._root / f"{BEST}.part"
        part.unlink(missing_ok=True)
        part.symlink_to(Path(record.path).name)
        part.replace(self._root / BEST)
        _sync(self._root)


def to_keep(records: Sequence[Checkpoint], rule: CheckpointConfig) -> list[Checkpoint]:
    """The newest `keep` of these (oldest first), and of each multiple of `keep_every` the newest lineage."""
    every = rule.keep_every
    newest = set(records[-rule.keep :])
    multiples = set({record.k: record for record in records if every and record.k % every == 0}.values())
    return [record for record in records if record in newest | multiples]


def verify(record: Checkpoint) -> CheckpointManifest:
    """Read a checkpoint in full and compare it with its record.

    Raises:
        PermanentError: something is missing, changed, or of a newer format; the text names it.
    """
    folder = Path(record.path)
    try:
        text = (folder / MANIFEST_FILE).read_bytes()
        if checksum(text) != record.checksum:
            raise PermanentError(f"checkpoint {folder}: {MANIFEST_FILE} is not the one that was recorded")
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise PermanentError(f"checkpoint {folder} has format {fields['format']}; this program reads {FORMAT}")
        manifest = CheckpointManifest(**fields)
        for name, facts in (manifest.files or {}).items():
            if _facts(folder / name) != facts:
                raise PermanentError(f"checkpoint {folder}: file {name} is not the one that was written")
    except OSError as error:
        raise PermanentError(f"checkpoint {folder} cannot be read: {error}") from None
    if (manifest.k, manifest.lineage, manifest.chain) != (record.k, record.lineage, record.chain):
        raise PermanentError(f"checkpoint {folder} is {manifest.k}.{manifest.lineage}, not what its record says")
    return manifest


def facts_of_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and checksum of each file below, by its relative path, as a manifest has them; without the manifest's."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST_FILE)
    return {str(path.relative_to(folder)): _facts(path) for path in paths}


def make_durable(folder: Path, final: Path) -> None:
    """Have the disk confirm everything in the folder, and only then give it its name."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)
    folder.rename(final)
    _sync(final.parent)


def _facts(path: Path) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb", buffering=0) as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
        return {"bytes": file.tell(), "blake2b": digest.hexdigest()}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
