"""Which row an issue number draws, and with which seed: pure functions, so a successor issues the same prompts."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from functools import lru_cache

MIXING_BLOCK = 1000
"""Issue numbers in which each set has exactly its share, rounded to one in a thousand."""


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


def mixed_position(n: int, sizes: Sequence[int], weights: Sequence[float], seed: int, shuffle: bool) -> tuple[int, int]:
    """(epoch of its set, row index in the whole table) of issue number `n` when sets are mixed by weight.

    Of each MIXING_BLOCK issue numbers every set gets its share, in an order that (seed, block) fixes; inside a set the
    rows come by `position`, so a small set with a large weight is simply through more epochs.

    Raises:
        ValueError: `n` is negative, or a set that is to be drawn is empty.
    """
    quotas = _quotas(tuple(weights))
    block, offset = divmod(n, MIXING_BLOCK)
    of_block = _block_order(quotas, seed, block)
    chosen = of_block[offset]
    drawn_before = block * quotas[chosen] + of_block[:offset].count(chosen)
    epoch, row = position(drawn_before, sizes[chosen], seed + chosen, shuffle)
    return epoch, sum(sizes[:chosen]) + row


def seed_of(seed: int, n: int) -> int:
    """Sampling seed of issue number `n` under the run's seed: 63 bits, so that it fits a signed 64-bit integer."""
    return _keyed(b"sample", seed, n) >> 1


def chance_of(seed: int, draw: int) -> float:
    """A number in [0, 1), fixed by the run's seed and a draw of the data order alone: for decisions about that draw."""
    return _keyed(b"chance", seed, draw) / 2**64


@lru_cache(maxsize=4)
def _epoch_order(size: int, seed: int, epoch: int) -> array[int]:
    return _order(size, _keyed(b"order", seed, epoch))


@lru_cache(maxsize=16)
def _quotas(weights: tuple[float, ...]) -> tuple[int, ...]:
    """Whole shares of a block by the largest remainder, at least one for every set."""
    exact = [MIXING_BLOCK * weight / sum(weights) for weight in weights]
    quotas = [max(1, int(share)) for share in exact]
    by_need = sorted(range(len(exact)), key=lambda i: (quotas[i] - exact[i], i))
    surplus = sum(quotas) - MIXING_BLOCK
    for i in by_need[: max(0, -surplus)]:
        quotas[i] += 1
    quotas[max(range(len(quotas)), key=quotas.__getitem__)] -= max(0, surplus)
    return tuple(quotas)


@lru_cache(maxsize=4)
def _block_order(quotas: tuple[int, ...], seed: int, block: int) -> array[int]:
    """The set of each issue number of a block."""
    sets = [chosen for chosen, quota in enumerate(quotas) for _ in range(quota)]
    return array("I", [sets[i] for i in _order(MIXING_BLOCK, _keyed(b"mix", seed, block))])


def _order(size: int, key: int) -> array[int]:
    """Numbers below `size` sorted by a keyed hash: unlike a library's shuffle it is the same in every language."""
    secret = key.to_bytes(8, "big")
    digests = [hashlib.blake2b(i.to_bytes(8, "big"), digest_size=8, key=secret).digest() for i in range(size)]
    return array("Q", sorted(range(size), key=lambda i: (digests[i], i)))


def _keyed(purpose: bytes, seed: int, number: int) -> int:
    message = seed.to_bytes(16, "big") + number.to_bytes(16, "big")
    return int.from_bytes(hashlib.blake2b(message, digest_size=8, person=purpose).digest(), "big")
