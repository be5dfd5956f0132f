"""The hash chain over everything that was trained: h(0) names the configuration, h(k + 1) adds batch k as fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sluice.types import BatchGroup


def genesis(config_hash: str) -> str:
    """h(0), hex: BLAKE2b-256 of the run's config hash."""
    return _blake(config_hash.encode()).hex()


def forked(chain: str, config_hash: str) -> str:
    """h(k), hex, of a run that starts at h(k) of another one: BLAKE2b-256 of that and of its own config hash."""
    return _blake(bytes.fromhex(chain) + config_hash.encode()).hex()


def extend(chain: str, groups: Sequence[BatchGroup]) -> str:
    """h(k + 1), hex: BLAKE2b-256 of h(k) and the digest of batch k.

    The digest covers, for each group in the order of its record, the issue number (8 bytes, big endian) and the content
    hash of each rollout. Call it once every rank has fetched these rollouts and found these hashes in their bytes.
    """
    digest = _blake(b"".join(g.n.to_bytes(8, "big") + b"".join(r.content_hash for r in g.rollouts) for g in groups))
    return _blake(bytes.fromhex(chain) + digest).hex()


def _blake(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()
