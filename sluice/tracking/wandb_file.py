"""What a Weights & Biases run keeps on this machine until it is synced: a log of records in LevelDB's format.

The file begins with seven bytes that name it. Then come blocks of 32 KiB; a record is one fragment, or several over
blocks, each with a header of checksum (4 bytes), length (2) and kind (1): whole, first, middle, last.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.tracking.target import library

FILE_HEADER, BLOCK = 7, 32 << 10
FRAGMENT = struct.Struct("<IHB")
WHOLE, LAST = 1, 4


def last_step(files: list[Path]) -> int:
    """Number of the last step of which `files`, all of one run, have values; 0 when none has."""
    return max((history.step.num for history in _histories(files)), default=0)


def last_value(files: list[Path], name: str) -> int:
    """The largest value of the metric `name` in `files`; -1 when there is none."""
    items = (item for history in _histories(files) for item in history.item)
    found = [json.loads(item.value_json) for item in items if name in (item.key, *item.nested_key)]
    return max(map(int, found), default=-1)


def _histories(files: list[Path]) -> Iterator[Any]:
    """Each row of values."""
    messages = library("wandb.proto.wandb_internal_pb2")
    for file in files:
        for record in records(file.read_bytes()):
            message = messages.Record.FromString(record)
            if message.HasField("history"):
                yield message.history


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
