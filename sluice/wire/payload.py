"""Payloads as bytes: rollouts are named by a hash and put into messages; `codec` knows what they say."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import zstandard
from blake3 import blake3

from sluice.errors import WireError

MAX_MESSAGE_BYTES = (1 << 20) - 4096
"""Rollouts are stored in messages below 1 MiB, headers included: the server's default refuses bigger ones."""
HASH_BYTES = 16
MAX_ROLLOUT_BYTES = 1 << 28
"""Largest rollout after decompression; a bomb is refused before it is unpacked."""


def content_hash(payload: bytes) -> bytes:
    """BLAKE3 of the stored bytes, 128 bits of it: what a group names and a trainer verifies."""
    return blake3(payload).digest(HASH_BYTES)


def has_content_hash(payload: bytes, named: bytes) -> bool:
    """Whether these are the bytes that a group names; older groups name 128 bits of SHA-256, or BLAKE2b-128."""
    return (
        content_hash(payload) == named
        or hashlib.sha256(payload).digest()[:HASH_BYTES] == named
        or hashlib.blake2b(payload, digest_size=HASH_BYTES).digest() == named
    )


def is_compressed(payload: bytes) -> bool:
    """Whether it is a zstd frame, as rollouts of older releases are; no protobuf message of ours begins like one."""
    return payload[: len(zstandard.FRAME_HEADER)] == zstandard.FRAME_HEADER


def decompress(payload: bytes, what: str) -> bytes:
    """Undo zstd. Raises: WireError: `what` is damaged, or would be over MAX_ROLLOUT_BYTES."""
    try:
        # A frame that states its size is unpacked to that size whatever limit the call names.
        if zstandard.frame_content_size(payload) > MAX_ROLLOUT_BYTES:
            raise WireError(f"{what} of {len(payload)} bytes unpacks to more than {MAX_ROLLOUT_BYTES} bytes")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=MAX_ROLLOUT_BYTES)
    except zstandard.ZstdError as error:
        raise WireError(f"{what} of {len(payload)} bytes cannot be decompressed: {error}") from None


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a payload lies: `nbytes` from `offset` on in one of the messages, or all of several that are its own."""

    messages: range
    offset: int
    nbytes: int


def pack(payloads: Sequence[bytes], limit: int = MAX_MESSAGE_BYTES) -> tuple[list[bytes], list[Slot]]:
    """The messages of at most `limit` bytes in which payloads are stored, and where each payload is.

    Neighbours share a message, since a message costs as much as tens of kilobytes; a payload over the limit is split
    and shares none.
    """
    messages: list[bytes] = []
    slots: list[Slot] = []
    together: list[bytes] = []
    size = 0

    def close() -> None:
        nonlocal size
        if together:
            messages.append(b"".join(together))
            together.clear()
            size = 0

    for payload in payloads:
        if size + len(payload) > limit:
            close()
        first = len(messages)
        if len(payload) > limit:
            messages += [payload[at : at + limit] for at in range(0, len(payload), limit)]
            slots.append(Slot(range(first, len(messages)), 0, len(payload)))
        else:
            slots.append(Slot(range(first, first + 1), size, len(payload)))
            together.append(payload)
            size += len(payload)
    close()
    return messages, slots


def unpack(messages: Sequence[bytes], offset: int, nbytes: int) -> bytes:
    """The payload that lies there; `nbytes` 0 stands for all of the messages, as groups of older releases mean it.

    Raises:
        WireError: the messages are too short.
    """
    whole = messages[0] if len(messages) == 1 else b"".join(messages)
    if nbytes == 0 or (offset, nbytes) == (0, len(whole)):
        return whole
    if offset + nbytes > len(whole):
        raise WireError(f"a payload lies at bytes {offset} to {offset + nbytes} of {len(whole)}")
    return whole[offset : offset + nbytes]
