"""What a Weights & Biases run keeps on this machine until it is synced: a log of records in LevelDB's format.

The file begins with seven bytes that name it. Then come blocks of 32 KiB; a record is one fragment, or several over
blocks, each with a header of checksum (4 bytes), length (2) and kind (1): whole, first, middle, last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from sluice.tracking.target import library

FILE_HEADER, BLOCK = 7, 32 << 10
FRAGMENT = struct.Struct("<IHB")
WHOLE, LAST = 1, 4


def last_step(files: list[Path]) -> int:
    """Number of the last step of which `files`, all of one run, have values; 0 when none has."""
    messages = library("wandb.proto.wandb_internal_pb2")
    found = 0
    for file in files:
        for record in records(file.read_bytes()):
            message = messages.Record.FromString(record)
            if message.HasField("history"):
                found = max(found, message.history.step.num)
    return found


def records(log: bytes) -> Iterator[bytes]:
    """Whole records; one that was cut short at the end is left out."""
    record, at = b"", FILE_HEADER
    while at + FRAGMENT.size <= len(log):
        if BLOCK - at % BLOCK < FRAGMENT.size:  # too little of the block was left for a header
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = FRAGMENT.unpack_from(log, at)
        at += FRAGMENT.size + length
        if at > len(log):
            return
        record += log[at - length : at]
        if kind in (WHOLE, LAST):
            yield record
            record = b""
