"""Numbers of a rollout, packed: immutable arrays of four-byte numbers that cross the bus without being unpacked.

A Python tuple costs some 30 ns a number each time it is made or read, and a long rollout has tens of thousands. A
packed array is one block of memory, which torch and numpy take as it is.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar, overload

import numpy as np

if sys.byteorder != "little":
    raise ImportError(f"sluice packs numbers little-endian, this machine is {sys.byteorder}-endian")

N = TypeVar("N", int, float)
WIDTH = 4
"""Bytes of a number."""


class Packed(Sequence[N]):
    """A fixed sequence of numbers; two are equal, and have equal hashes, when they are so bit for bit."""

    __slots__ = ("_view", "block")
    CODE: ClassVar[Literal["I", "f"]]
    """As in `array` and `struct`."""
    block: bytes
    """The numbers, little-endian, one after the other."""
    _view: memoryview[Any]
    """The same memory, read as numbers."""

    def __init__(self, numbers: Iterable[N] = ()) -> None:
        """Raises: TypeError, OverflowError: an entry is not such a number."""
        self.block = array(self.CODE, numbers).tobytes()
        self._view = memoryview(self.block).cast(self.CODE)

    @classmethod
    def of_block(cls, block: bytes) -> Self:
        """The numbers in `block`, which is not copied. Raises: ValueError: not a whole number of them."""
        if len(block) % WIDTH:
            raise ValueError(f"{len(block)} bytes are no whole number of {WIDTH}-byte numbers")
        found = cls.__new__(cls)
        found.block = block
        found._view = memoryview(block).cast(cls.CODE)
        return found

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What numpy reads, without a copy: [T] numbers that cannot be written."""
        kind = "f" if self.CODE == "f" else "u"
        return {"version": 3, "typestr": f"<{kind}{WIDTH}", "shape": (len(self),), "data": self._view}

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[N]:
        return iter(self._view.tolist())

    @overload
    def __getitem__(self, index: int) -> N: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> N | Self:
        if isinstance(index, slice):
            return self.of_block(self._view[index].tobytes())
        number: N = self._view[index]
        return number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed) and self.CODE == other.CODE and self.block == other.block

    def __hash__(self) -> int:
        return hash(self.block)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class TokenIds(Packed[int]):
    """Token ids, unsigned 32-bit."""

    __slots__ = ()
    CODE = "I"

    def halves(self) -> tuple[bytes, bytes]:
        """The lower 16 bits of each id, and the rest in the fewest bytes that hold it: none, one or two."""
        ids = np.frombuffer(self.block, "<u4")
        rest = int(ids.max(initial=0)) >> 16
        low = ids.astype("<u2").tobytes()
        return low, (ids >> 16).astype("<u1" if rest < 1 << 8 else "<u2").tobytes() if rest else b""

    @classmethod
    def of_halves(cls, low: bytes, high: bytes) -> Self:
        """The ids that `halves` took apart. Raises: ValueError: the halves do not belong together."""
        if len(high) not in (0, len(low) // 2, len(low)) or len(low) % 2:
            raise ValueError(f"{len(low)} and {len(high)} bytes are no halves of token ids")
        ids = np.frombuffer(low, "<u2").astype("<u4")
        if high:
            ids |= np.frombuffer(high, "<u2" if len(high) == len(low) else "<u1").astype("<u4") << 16
        return cls.of_block(ids.tobytes())


class LogProbs(Packed[float]):
    """Log-probs in nats, 32-bit floats."""

    __slots__ = ()
    CODE = "f"
