"""Which row an issue number draws, and with which seed: pure functions, so a successor issues the same prompts."""

from __future__ import annotations

import hashlib
from array import array
from functools import lru_cache


def position(n: int, size: int, seed: int, shuffle: bool) -> tuple[int, int]:
    """(epoch, row index) of issue number `n` in a table of `size` rows.

    Every epoch takes each row exactly once: in table order, or in an order of its own that (seed, epoch) fixes.

    Raises:
        ValueError: `n` is negative or the table is empty.
    """
    if n < 0 or size < 1:
        raise ValueError(f"issue number {n} of a table of {size} rows: the number must be >= 0 and the size >= 1")
    epoch, offset = divmod(n, size)
    return epoch, (_epoch_order(size, seed, epoch)[offset] if shuffle else offset)


def seed_of(seed: int, n: int) -> int:
    """Sampling seed of issue number `n` under the run's seed: 63 bits, so that it fits a signed 64-bit integer."""
    return _keyed(b"sample", seed, n) >> 1


@lru_cache(maxsize=4)
def _epoch_order(size: int, seed: int, epoch: int) -> array[int]:
    """Rows sorted by a keyed hash: unlike a library's shuffle it is the same in every version of every language."""
    epoch_key = _keyed(b"order", seed, epoch).to_bytes(8, "big")
    digests = [hashlib.blake2b(i.to_bytes(8, "big"), digest_size=8, key=epoch_key).digest() for i in range(size)]
    return array("Q", sorted(range(size), key=lambda i: (digests[i], i)))


def _keyed(purpose: bytes, seed: int, number: int) -> int:
    message = seed.to_bytes(16, "big") + number.to_bytes(16, "big")
    return int.from_bytes(hashlib.blake2b(message, digest_size=8, person=purpose).digest(), "big")
