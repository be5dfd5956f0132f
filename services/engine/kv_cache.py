"""Keys and values of running rows, in arenas of equal capacity.

An arena holds rows of one capacity (a power of two) side by side, so that a decode step reads them as one tensor
without gathering. A row that outgrows its arena moves to the next: capacity doubles, so the copies cost less than
one more pass over the cache, and no row is padded to the length of the longest.

Shape letters: L layers, R rows, H key-value heads, C capacity in tokens, D head width.
"""

from dataclasses import dataclass, field

import torch

from services.engine.architecture import Architecture
from services.engine.request import Sample

SMALLEST_CAPACITY = 32


def capacity_for(num_tokens: int) -> int:
    """The capacity of the smallest row that holds `num_tokens`."""
    return max(SMALLEST_CAPACITY, 1 << (num_tokens - 1).bit_length())


@dataclass
class Arena:
    """Rows of one capacity; row i of `kv` (L, 2, R, H, C, D) belongs to samples[i], and rows beyond are spare."""

    capacity: int
    kv: torch.Tensor
    samples: list[Sample] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return len(self.samples)


class KvCache:
    """All arenas of the engine."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        self._architecture = architecture
        self._dtype = dtype
        self._arenas: dict[int, Arena] = {}

    @property
    def arenas(self) -> list[Arena]:
        """The arenas with rows, by rising capacity: the order of rows in a decode step."""
        return [self._arenas[capacity] for capacity in sorted(self._arenas) if self._arenas[capacity].samples]

    @property
    def num_rows(self) -> int:
        return sum(arena.num_rows for arena in self._arenas.values())

    @property
    def reserved_tokens(self) -> int:
        """Tokens that the rows in use have room for."""
        return sum(arena.num_rows * capacity for capacity, arena in self._arenas.items())

    @property
    def used_tokens(self) -> int:
        return sum(sample.kv_length for arena in self._arenas.values() for sample in arena.samples)

    def append(self, samples: list[Sample], capacity: int) -> tuple[Arena, int]:
        """Add rows of `capacity` at the end of its arena; returns the arena and the first new row."""
        arena = self._arenas.get(capacity)
        if arena is None:
            arena = self._arenas[capacity] = Arena(capacity, self._allocate(0, capacity))
        first = arena.num_rows
        if first + len(samples) > arena.kv.shape[2]:
            self._free_empty_arenas(but=arena)
            # Doubling keeps the number of copies of an arena logarithmic in its rows.
            grown = self._allocate(max(first + len(samples), 2 * first), capacity)
            grown[:, :, :first] = arena.kv[:, :, :first]
            arena.kv = grown
        arena.samples.extend(samples)
        return arena, first

    def _free_empty_arenas(self, but: Arena) -> None:
        """Empty arenas keep their memory for the next rows of their capacity, until another arena needs some."""
        self._arenas = {capacity: one for capacity, one in self._arenas.items() if one.samples or one is but}

    def _allocate(self, rows: int, capacity: int) -> torch.Tensor:
        a = self._architecture
        # Zeros, not garbage: a masked position still enters the product of weights and values, and 0 x NaN is NaN.
        return torch.zeros(a.num_layers, 2, rows, a.num_kv_heads, capacity, a.head_dim, dtype=self._dtype)

    def remove(self, gone: set[Sample]) -> None:
        """Drop the rows of the samples in `gone`; rows from the end fill the holes."""
        for arena in self.arenas:
            num_kept = sum(sample not in gone for sample in arena.samples)
            if num_kept == arena.num_rows:
                continue
            holes = [row for row in range(num_kept) if arena.samples[row] in gone]
            movers = [row for row in range(num_kept, arena.num_rows) if arena.samples[row] not in gone]
            if holes:
                arena.kv[:, :, holes] = arena.kv[:, :, movers]
            for hole, mover in zip(holes, movers, strict=True):
                arena.samples[hole] = arena.samples[mover]
            del arena.samples[num_kept:]

    def grow_full_rows(self) -> None:
        """Move each row with no room for one more token to the arena of twice its capacity."""
        # Descending, so that a row moves once.
        for arena in reversed(self.arenas):
            full = [row for row, sample in enumerate(arena.samples) if sample.kv_length >= arena.capacity]
            if not full:
                continue
            samples = [arena.samples[row] for row in full]
            kv_L2RHCD = arena.kv[:, :, full]
            self.remove(set(samples))
            wider, first = self.append(samples, 2 * arena.capacity)
            wider.kv[:, :, first : first + len(full), :, : arena.capacity] = kv_L2RHCD

    def tokens_to_grow(self) -> int:
        """Room that `grow_full_rows` would add to `reserved_tokens` now."""
        return sum(
            arena.capacity
            for arena in self._arenas.values()
            for sample in arena.samples
            if sample.kv_length >= arena.capacity
        )

    def clear(self) -> list[Sample]:
        """Drop all rows; returns their samples in no particular order."""
        samples = [sample for arena in self.arenas for sample in arena.samples]
        for arena in self.arenas:
            arena.samples.clear()
        return samples
