"""A checkpoint's folder as anybody can read it: who it belongs to, and the ledger records that came along.

What the trainer keeps in it beside these two files is between it and DeepSpeed.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from pathlib import Path

from sluice.errors import ConfigError
from sluice.types import Checkpoint, LedgerRecord
from sluice.wire.records import decode_ledger

MANIFEST_FILE = "manifest.json"
LEDGER_FILE = "ledger.bin"
_HEADER = struct.Struct(">QI")
"""Before each record in LEDGER_FILE: its stream sequence and its length in bytes."""


def checksum(text: bytes) -> str:
    """Of a manifest, as its CHECKPOINT record has it: hex BLAKE2b-256."""
    return hashlib.blake2b(text, digest_size=32).hexdigest()


def record_of(folder: Path) -> tuple[str, Checkpoint]:
    """The run that a checkpoint belongs to, and the record that vouches for it, as its own manifest tells them.

    Raises:
        ConfigError: the folder is no checkpoint.
    """
    try:
        text = (folder / MANIFEST_FILE).read_bytes()
        fields = json.loads(text)
        record = Checkpoint(fields["k"], fields["lineage"], str(folder.resolve()), checksum(text), fields["chain"])
        return str(fields["run_id"]), record
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"its {MANIFEST_FILE} cannot be read: {error!r}"
        raise ConfigError(
            f"{folder} is no checkpoint ({why}); name a folder such as checkpoints/RUN/K.LINEAGE, with its "
            f"{MANIFEST_FILE}"
        ) from None


def pack_ledger(records: Iterable[tuple[int, bytes]]) -> bytes:
    """The content of LEDGER_FILE."""
    return b"".join(_HEADER.pack(sequence, len(payload)) + payload for sequence, payload in records)


def read_ledger(folder: Path) -> list[LedgerRecord]:
    """The records in a checkpoint: the one that created the run, and those since the checkpoint before.

    Raises:
        ConfigError: the file is not there, or cut off.
        WireError: a record that this program cannot read.
    """
    try:
        data = (folder / LEDGER_FILE).read_bytes()
    except OSError as error:
        raise ConfigError(f"{folder / LEDGER_FILE}: {error.strerror}") from None
    records, at = [], 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise ConfigError(f"{folder / LEDGER_FILE} is cut off at byte {at}")
        _, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size + length
        records.append(decode_ledger(data[at - length : at]))
    return records
