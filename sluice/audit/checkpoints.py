"""Checkpoint folders against their records: the name, the manifest, every file, and the copy of LEDGER inside.

Folders are read where their records say they are. On another machine there is nothing to see, and old ones are removed;
only the newest must be there if its run's folder is.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from sluice.audit.findings import Fault, Finding
from sluice.audit.reading import Stored
from sluice.wire.v1.ledger_pb2 import Checkpoint, LedgerRecord

MANIFEST_FILE = "manifest.json"
LEDGER_FILE = "ledger.bin"
HEADER = struct.Struct(">QI")
"""Before each record of LEDGER_FILE: its stream sequence and its length in bytes."""
READ_BYTES = 8 << 20


@dataclass(slots=True)
class OnDisk:
    verified: int = 0
    elsewhere: int = 0
    """Checkpoints whose folder is not here."""
    findings: list[Finding] = field(default_factory=list)


class CheckpointFolders:
    """Looks at each recorded folder of one run."""

    def __init__(self, run_id: str, config_hash: str, ledger: Sequence[Stored[LedgerRecord]]) -> None:
        self._run_id, self._config_hash = run_id, config_hash
        self._ledger = {entry.sequence: entry.message for entry in ledger}

    def check(self, checkpoints: Sequence[Checkpoint]) -> OnDisk:
        on_disk = OnDisk()
        for position, record in enumerate(checkpoints, start=1):
            folder = Path(record.path)
            if folder.is_dir():
                on_disk.verified += 1
                faults = list(self._faults(folder, record))
            else:
                on_disk.elsewhere += 1
                removed = position == len(checkpoints) and folder.parent.is_dir()
                faults = ["the newest recorded checkpoint is not there"] if removed else []
            on_disk.findings += [Finding(Fault.CHECKPOINT, f"{folder}: {fault}") for fault in faults]
        return on_disk

    def _faults(self, folder: Path, record: Checkpoint) -> Iterator[str]:
        if folder.name != f"{record.k}.{record.lineage}":
            yield f"the folder of checkpoint {record.k}.{record.lineage} has another name"
        try:
            text = (folder / MANIFEST_FILE).read_bytes()
            manifest = json.loads(text)
            yield from self._manifest_faults(text, manifest, record)
            yield from self._file_faults(folder, manifest["files"])
            yield from self._ledger_faults(folder, manifest["ledger_sequence"])
        except OSError as error:
            yield f"cannot be read: {error}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            yield f"{MANIFEST_FILE} is no manifest: {error!r}"

    def _manifest_faults(self, text: bytes, manifest: dict[str, Any], record: Checkpoint) -> Iterator[str]:
        if hashlib.blake2b(text, digest_size=32).hexdigest() != record.checksum:
            yield f"{MANIFEST_FILE} does not have the checksum of its record"
        expected = {
            "run_id": self._run_id,
            "k": record.k,
            "lineage": record.lineage,
            "chain": record.chain,
            "config_hash": self._config_hash,
        }
        for name, value in expected.items():
            if manifest[name] != value:
                yield f"{MANIFEST_FILE} says {name} = {manifest[name]!r}, the records say {value!r}"

    def _file_faults(self, folder: Path, files: dict[str, dict[str, Any]]) -> Iterator[str]:
        for name, facts in files.items():
            path = folder / name
            if not path.is_file():
                yield f"{name} is missing"
            elif path.stat().st_size != facts["bytes"]:
                yield f"{name} has {path.stat().st_size} bytes, the manifest says {facts['bytes']}"
            elif _checksum(path) != facts["blake2b"]:
                yield f"{name} does not have the checksum of the manifest"
        present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        for name in sorted(present - files.keys() - {MANIFEST_FILE}):
            yield f"{name} is not in the manifest"

    def _ledger_faults(self, folder: Path, covered: int) -> Iterator[str]:
        """Each copied record is the one LEDGER has under its sequence: with both, a lost stream can be mended."""
        if covered > max(self._ledger, default=0):
            yield f"covers LEDGER up to sequence {covered}, which the server does not have"
        for sequence, payload in _copied_records((folder / LEDGER_FILE).read_bytes()):
            if sequence > covered or _parse(payload) != self._ledger.get(sequence):
                yield f"{LEDGER_FILE} has another record {sequence} than LEDGER"


def _copied_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Raises: ValueError: cut off."""
    at = 0
    while at < len(data):
        if at + HEADER.size > len(data):
            raise ValueError(f"{LEDGER_FILE} is cut off at byte {at}")
        sequence, length = HEADER.unpack_from(data, at)
        at += HEADER.size + length
        yield sequence, data[at - length : at]


def _parse(payload: bytes) -> LedgerRecord | None:
    record = LedgerRecord()
    try:
        record.ParseFromString(payload)
    except DecodeError:
        return None
    return record


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
