"""Write policy versions to `<root>/<run>/<version>`: complete or not there at all, and never changed afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer

from sluice.errors import WeightError
from sluice.types import PolicyVersion
from sluice.weights.manifest import (
    FORMAT,
    HEADER_BYTES,
    INDEX_FILE,
    MANIFEST_FILE,
    AdaptersEntry,
    Manifest,
    TensorEntry,
    check_plain_name,
    header_bytes,
    index_bytes,
    tensor_bytes,
)

SHARD_BYTES = 256 << 20
"""A new shard begins when the next tensor would pass this: shards are hashed and fetched in parallel."""
_PIECE = 8 << 20


class VersionWriter:
    """Writes one version tensor by tensor; nothing is visible before `commit`.

    A writer that dies leaves a hidden folder, which `remove_old` takes away. Tensors are hashed in a second thread
    while they are written; `add` returns when the buffer may be used again.
    """

    def __init__(  # noqa: PLR0913 (one manifest's worth of facts, all but three by keyword)
        self,
        root: Path,
        run_id: str,
        version: PolicyVersion,
        *,
        parent: Manifest | None,
        optimizer_updates: int,
        config_hash: str,
        kind: str = "full",
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Open a temporary folder beside the final one.

        Raises:
            WeightError: the version is published already, or `run_id` is no plain name.
        """
        self._run = root / check_plain_name("run id", run_id)
        self._final = self._run / str(version)
        if self._final.exists():
            raise WeightError(f"{version} of run {run_id} is published already at {self._final}; versions never change")
        self._run_id, self._version, self._parent = run_id, version, parent
        self._optimizer_updates, self._config_hash = optimizer_updates, config_hash
        self._kind, self._shard_bytes = kind, shard_bytes
        self._folder = self._run / f".{version}.{secrets.token_hex(4)}.writing"
        self._folder.mkdir(parents=True)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="publish")
        self._syncs: list[Future[None]] = []
        self._done: list[TensorEntry] = []
        self._names: set[str] = set()
        self._shard: _Shard | None = None

    def add(self, name: str, dtype: str, shape: Sequence[int], data: Buffer) -> None:
        """Write one tensor: `data` holds its elements, C-contiguous and little-endian; `dtype` is "BF16" or "F32".

        Raises:
            WeightError: the buffer has another size than dtype and shape say, or the name came before.
        """
        view = _flat(data)
        expected = tensor_bytes(dtype, shape)
        if view.nbytes != expected:
            raise WeightError(f"tensor {name!r} of {dtype} {list(shape)} needs {expected} bytes, got {view.nbytes}")
        if name in self._names:
            raise WeightError(f"tensor {name!r} was added twice to {self._version}")
        self._names.add(name)
        checksum = self._threads.submit(_sha256, view)
        shard = self._shard_for(name, dtype, shape, view.nbytes)
        offset = shard.write(view)
        entry = TensorEntry(name, dtype, tuple(shape), view.nbytes, shard.path.name, offset, checksum.result())
        shard.entries.append(entry)

    def commit(self, adapters: AdaptersEntry | None = None) -> tuple[Path, Manifest]:
        """Make the version durable and visible: fsync everything, then rename. Returns its folder and manifest.

        `adapters`: those that are merged into it, already published.

        Raises:
            WeightError: the version was published meanwhile.
        """
        self._close_shard()
        for sync in self._syncs:
            sync.result()
        manifest = Manifest(
            format=FORMAT,
            run_id=self._run_id,
            version=self._version,
            kind=self._kind,
            parent=None if self._parent is None else self._parent.version,
            parent_hash="" if self._parent is None else self._parent.hash,
            optimizer_updates=self._optimizer_updates,
            config_hash=self._config_hash,
            tensors=tuple(self._done),
            adapters=adapters,
        )
        seal(self._folder, manifest, self._final)
        self._threads.shutdown()
        return self._final, manifest

    def abort(self) -> None:
        """Leave nothing behind. Safe after a failed `add` or `commit`."""
        self._threads.shutdown(cancel_futures=True)
        if self._shard is not None:
            self._shard.file.close()
            self._shard = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _shard_for(self, name: str, dtype: str, shape: Sequence[int], nbytes: int) -> _Shard:
        cost = len(json.dumps([name, dtype, list(shape)])) + 80
        if self._shard is not None and not self._shard.has_room(nbytes, cost, self._shard_bytes):
            self._close_shard()
        if self._shard is None:
            number = len({entry.file for entry in self._done}) + 1
            self._shard = _Shard(self._folder / f"model-{number:05d}.safetensors")
        self._shard.header_cost += cost
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is None:
            return
        shard, self._shard = self._shard, None
        self._done.extend(shard.entries)
        self._syncs.append(self._threads.submit(shard.finish))


class _Shard:
    """One safetensors file being written; its header goes in last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO = path.open("xb", buffering=0)
        self.file.seek(HEADER_BYTES)
        self.end = HEADER_BYTES
        self.header_cost = 0
        self.entries: list[TensorEntry] = []

    def has_room(self, nbytes: int, header_cost: int, shard_bytes: int) -> bool:
        return self.end - HEADER_BYTES + nbytes <= shard_bytes and self.header_cost + header_cost <= HEADER_BYTES - 10

    def write(self, view: memoryview) -> int:
        """Append the bytes and return their offset."""
        offset = self.end
        _write_all(self.file, view)
        self.end += view.nbytes
        return offset

    def finish(self) -> None:
        with self.file:
            self.file.seek(0)
            _write_all(self.file, memoryview(header_bytes(self.entries)))
            os.fsync(self.file.fileno())


def seal(folder: Path, manifest: Manifest, final: Path) -> None:
    """Add index and manifest to a folder of complete shards, make it durable, and rename it to `final`.

    Raises:
        WeightError: `final` exists already.
    """
    write_durably(folder / INDEX_FILE, index_bytes(manifest))
    write_durably(folder / MANIFEST_FILE, manifest.to_json())
    sync_folder(folder)
    try:
        folder.rename(final)
    except OSError as error:
        raise WeightError(f"cannot publish {manifest.version} at {final}: {error.strerror}") from error
    sync_folder(final.parent)


def remove_old(root: Path, run_id: str, keep: int, pinned: Collection[PolicyVersion]) -> list[PolicyVersion]:
    """Remove all but the newest `keep` versions of a run and the pinned ones; returns what was removed, oldest first.

    Hidden folders that dead writers left for versions up to the newest one go too. A removed version vanishes by a
    rename, so that nobody finds half of it.
    """
    folder = root / check_plain_name("run id", run_id)
    versions = list_versions(root, run_id)
    kept = {*versions[max(0, len(versions) - keep) :], *pinned}
    removed = [version for version in versions if version not in kept]
    for version in removed:
        (folder / str(version)).rename(folder / f".{version}.{secrets.token_hex(4)}.removed")
    for leftover in folder.glob(".v*"):
        hidden = _hidden_version(leftover)
        if hidden is not None and versions and (hidden <= versions[-1] or leftover.suffix == ".removed"):
            shutil.rmtree(leftover, ignore_errors=True)
    return removed


def list_versions(root: Path, run_id: str) -> list[PolicyVersion]:
    """The complete versions of a run under `root`, oldest first."""
    folder = root / check_plain_name("run id", run_id)
    found = []
    for path in folder.glob("v*/" + MANIFEST_FILE):
        try:
            found.append(PolicyVersion.parse(path.parent.name))
        except ValueError:
            continue  # somebody else's folder
    return sorted(found)


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file and fsync it."""
    with path.open("wb", buffering=0) as file:
        _write_all(file, memoryview(data))
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hidden_version(path: Path) -> PolicyVersion | None:
    name = path.name.removeprefix(".").split(".")
    try:
        return PolicyVersion.parse(".".join(name[:2]))
    except ValueError:
        return None


def _flat(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _sha256(view: memoryview) -> str:
    return hashlib.sha256(view).hexdigest()


def _write_all(file: BinaryIO, view: memoryview) -> None:
    """An unbuffered write may be short; large ones go in pieces, so that other threads run between them."""
    position = 0
    while position < view.nbytes:
        position += file.write(view[position : position + _PIECE])
