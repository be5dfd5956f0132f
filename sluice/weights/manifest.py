"""The manifest of a policy version, and the safetensors layout that follows from it.

A shard is a safetensors file whose header is padded with spaces to exactly HEADER_BYTES. So tensors can be written
while later ones are not known yet, and the header is a pure function of the manifest: it is verified like the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluice.errors import WeightError
from sluice.types import PolicyVersion

FORMAT = 1
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "model.safetensors.index.json"
KINDS = ("full", "adapters")
HEADER_BYTES = 1 << 16
"""Room for a shard's header, with its 8-byte length: about 400 tensors, then a new shard begins."""
ITEM_BYTES = {"BF16": 2, "F32": 4}
"""Bytes of one element by safetensors' name of the dtype."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_CHECKSUM = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `offset` is absolute in `file`, `checksum` the hex SHA-256 of its `nbytes` little-endian bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int
    checksum: str


@dataclass(frozen=True, slots=True)
class AdaptersEntry:
    """Which adapters are merged into a version's weights: published beside it as a version of kind `adapters`."""

    manifest_hash: str
    rank: int
    alpha: int
    target_modules: tuple[str, ...] | None
    """Ends of layer names; None: every linear layer but the head."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything known about a version: where it comes from, and each tensor in file order."""

    format: int
    run_id: str
    version: PolicyVersion
    kind: str
    """`full`: every tensor of the model is here. `adapters`: only what was trained beside a base."""
    parent: PolicyVersion | None
    parent_hash: str
    """The parent's manifest hash; empty without a parent."""
    optimizer_updates: int
    """Optimizer updates in these weights since the run's initial model."""
    config_hash: str
    tensors: tuple[TensorEntry, ...]
    adapters: AdaptersEntry | None = None
    """None: all weights were trained, or these are the adapters themselves."""

    def to_json(self) -> bytes:
        """Canonical bytes: sorted keys, no spaces. These are what is hashed, stored and sent."""
        fields = asdict(self)
        if self.adapters is None:
            del fields["adapters"]
        fields["version"] = str(self.version)
        fields["parent"] = None if self.parent is None else str(self.parent)
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> Manifest:
        """Read and check a manifest.

        Raises:
            WeightError: not a manifest of a known format, or its tensors do not tile their files.
        """
        try:
            fields = json.loads(raw)
            manifest = _from_fields(fields)
        except (ValueError, KeyError, TypeError) as error:
            raise WeightError(f"manifest of {len(raw)} bytes cannot be read: {error!r}") from None
        _check(manifest)
        return manifest

    @property
    def hash(self) -> str:
        """Hex SHA-256 of `to_json()`: what the TRAINER record announces and a worker verifies."""
        return manifest_hash(self.to_json())

    @property
    def files(self) -> dict[str, tuple[TensorEntry, ...]]:
        """Tensors of each shard, in file order."""
        shards: dict[str, list[TensorEntry]] = {}
        for entry in self.tensors:
            shards.setdefault(entry.file, []).append(entry)
        return {file: tuple(entries) for file, entries in shards.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors)


def adapters_run(run_id: str) -> str:
    """Where adapters are published: beside the run's own folder, in one of this name, under the same versions."""
    return f"{run_id}.adapters"


def manifest_hash(raw: bytes) -> str:
    """Hex SHA-256 of a manifest's bytes."""
    return hashlib.sha256(raw).hexdigest()


def file_size(entries: Sequence[TensorEntry]) -> int:
    """Bytes of the shard that holds these tensors."""
    return HEADER_BYTES + sum(entry.nbytes for entry in entries)


def header_bytes(entries: Sequence[TensorEntry]) -> bytes:
    """The safetensors header of a shard: 8-byte little-endian length, JSON, spaces up to HEADER_BYTES.

    Raises:
        WeightError: the JSON does not fit.
    """
    fields = {
        entry.name: {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [entry.offset - HEADER_BYTES, entry.offset - HEADER_BYTES + entry.nbytes],
        }
        for entry in entries
    }
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    room = HEADER_BYTES - 8
    if len(text) > room:
        raise WeightError(f"header of {len(entries)} tensors needs {len(text)} bytes; a shard has room for {room}")
    return room.to_bytes(8, "little") + text.ljust(room)


def index_bytes(manifest: Manifest) -> bytes:
    """The Hugging Face index that tells an engine which shard holds which tensor."""
    index = {
        "metadata": {"total_size": manifest.nbytes},
        "weight_map": {entry.name: entry.file for entry in manifest.tensors},
    }
    return json.dumps(index, indent=1, sort_keys=True, ensure_ascii=False).encode()


def check_plain_name(what: str, name: str) -> str:
    """Give back a name that is safe as one path component.

    Raises:
        WeightError: it is not.
    """
    if not _PLAIN_NAME.fullmatch(name):
        raise WeightError(f"{what} {name!r} is not a plain name of letters, digits, '.', '_' and '-'")
    return name


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor.

    Raises:
        WeightError: unknown dtype or a negative dimension.
    """
    if dtype not in ITEM_BYTES:
        raise WeightError(f"dtype {dtype!r} is not published; one of {sorted(ITEM_BYTES)} is")
    if any(size < 0 for size in shape):
        raise WeightError(f"shape {list(shape)} has a negative dimension")
    return math.prod(shape) * ITEM_BYTES[dtype]


def _from_fields(fields: dict[str, Any]) -> Manifest:
    if fields["format"] != FORMAT:
        raise WeightError(f"manifest has format {fields['format']!r}; this program reads {FORMAT}")
    parent = fields["parent"]
    return Manifest(
        format=FORMAT,
        run_id=str(fields["run_id"]),
        version=PolicyVersion.parse(fields["version"]),
        kind=str(fields["kind"]),
        parent=None if parent is None else PolicyVersion.parse(parent),
        parent_hash=str(fields["parent_hash"]),
        optimizer_updates=int(fields["optimizer_updates"]),
        config_hash=str(fields["config_hash"]),
        tensors=tuple(_entry(tensor) for tensor in fields["tensors"]),
        adapters=_adapters(fields["adapters"]) if "adapters" in fields else None,
    )


def _adapters(fields: dict[str, Any]) -> AdaptersEntry:
    targets = fields["target_modules"]
    return AdaptersEntry(
        manifest_hash=str(fields["manifest_hash"]),
        rank=int(fields["rank"]),
        alpha=int(fields["alpha"]),
        target_modules=None if targets is None else tuple(str(name) for name in targets),
    )


def _entry(fields: dict[str, Any]) -> TensorEntry:
    return TensorEntry(
        name=str(fields["name"]),
        dtype=str(fields["dtype"]),
        shape=tuple(int(size) for size in fields["shape"]),
        nbytes=int(fields["nbytes"]),
        file=str(fields["file"]),
        offset=int(fields["offset"]),
        checksum=str(fields["checksum"]),
    )


def _check(manifest: Manifest) -> None:
    check_plain_name("run id", manifest.run_id)
    if manifest.kind not in KINDS:
        raise WeightError(f"manifest of {manifest.version} has kind {manifest.kind!r}; this program reads {KINDS}")
    ends: dict[str, int] = {}
    for entry in manifest.tensors:
        _check_entry(entry, ends.get(entry.file, HEADER_BYTES))
        ends[entry.file] = entry.offset + entry.nbytes
    if len({entry.name for entry in manifest.tensors}) != len(manifest.tensors):
        raise WeightError(f"manifest of {manifest.version} names a tensor twice")


def _check_entry(entry: TensorEntry, expected_offset: int) -> None:
    check_plain_name("file", entry.file)
    if not entry.file.endswith(".safetensors"):
        raise WeightError(f"tensor {entry.name!r} is in {entry.file!r}, which is no safetensors file")
    if entry.nbytes != tensor_bytes(entry.dtype, entry.shape):
        raise WeightError(
            f"tensor {entry.name!r} of {entry.dtype} {list(entry.shape)} cannot have {entry.nbytes} bytes"
        )
    if entry.offset != expected_offset:
        raise WeightError(
            f"tensor {entry.name!r} is at offset {entry.offset} of {entry.file}, expected {expected_offset}"
        )
    if not _CHECKSUM.fullmatch(entry.checksum):
        raise WeightError(f"tensor {entry.name!r} has checksum {entry.checksum!r}, which is not a hex SHA-256")
