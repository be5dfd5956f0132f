"""What this process has written to LEDGER of late: who reads it here once more, for the API, need not decode it."""

from __future__ import annotations

from sluice.transport.log import FencedLog
from sluice.transport.nats import Bus
from sluice.types import LedgerRecord
from sluice.wire import subjects
from sluice.wire.records import decode_ledger, encode_ledger

KEPT = 256
"""Records that nobody has read yet; what is older is decoded. Held runs are read every second."""


class Written:
    """Records by their bytes, each until it is read once. They tell nothing about what is stored: the bytes do."""

    def __init__(self) -> None:
        self._records: dict[bytes, LedgerRecord] = {}

    def log(self, bus: Bus, run_id: str) -> FencedLog[LedgerRecord]:
        """The LEDGER of a run, for a writer or a reader of this process."""
        return FencedLog(bus, subjects.LEDGER, subjects.ledger(run_id), self._encode, self._decode)

    def _encode(self, record: LedgerRecord) -> bytes:
        payload = encode_ledger(record)
        while len(self._records) >= KEPT:
            del self._records[next(iter(self._records))]
        self._records[payload] = record
        return payload

    def _decode(self, payload: bytes) -> LedgerRecord:
        return self._records.pop(payload, None) or decode_ledger(payload)
