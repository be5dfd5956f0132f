"""Bring a published version to this machine and prove that its bytes are those that were published.

`file://` versions are verified where they are. `grpc://` versions are downloaded into a cache of the same layout, so
that a worker can serve them on; a cut download is continued from wherever the version is found next.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import grpc
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from sluice.errors import TransientError, WeightError
from sluice.types import Version
from sluice.weights.manifest import (
    HEADER_BYTES,
    MANIFEST_FILE,
    Manifest,
    TensorEntry,
    check_plain_name,
    file_size,
    header_bytes,
    manifest_hash,
)
from sluice.weights.publish import seal
from sluice.wire.v1 import weights_pb2 as pb
from sluice.wire.v1.weights_pb2_grpc import WeightServiceStub

if TYPE_CHECKING:
    from sluice.wire.v1.weights_pb2_grpc import WeightServiceAsyncStub

MAX_MESSAGE_BYTES = 64 << 20
"""Largest manifest that is accepted over gRPC: some 250,000 tensors."""
_PIECE = 4 << 20
_VERIFY_THREADS = 4
_KEEPALIVE = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


async def fetch_version(record: Version, cache: Path, deadline_seconds: float) -> tuple[Path, Manifest]:
    """Folder and manifest of an announced version, every checksum verified.

    Args:
        record: the announcement; its `uri` is the version's folder (`file:///…`) or a server (`grpc://host:port`).
        cache: where `grpc://` versions are kept, as `<cache>/<run>/<version>`.
        deadline_seconds: longest time to try.

    Raises:
        WeightError: the bytes are there and wrong: manifest hash, sizes, header or a checksum.
        TransientError: they cannot be had now: collected, server away, deadline passed. Calling again continues.
    """
    try:
        async with asyncio.timeout(deadline_seconds):
            return await _fetch(record, cache, deadline_seconds)
    except TimeoutError:
        raise TransientError(
            f"{record.version} from {record.uri} did not arrive within {deadline_seconds:g} s; "
            f"knob: deadlines.weight_sync_seconds"
        ) from None


async def fetch_manifest(record: Version, deadline_seconds: float) -> Manifest:
    """The manifest of an announced version, its hash verified, without any weights.

    Raises:
        WeightError, TransientError: as `fetch_version`.
    """
    parts = urlsplit(record.uri)
    if parts.scheme == "file":
        try:
            return _checked_manifest((Path(unquote(parts.path)) / MANIFEST_FILE).read_bytes(), record)
        except OSError as error:
            raise TransientError(f"{record.version} cannot be read at {record.uri}: {error}") from None
    try:
        async with asyncio.timeout(deadline_seconds), grpc.aio.insecure_channel(parts.netloc, _KEEPALIVE) as channel:
            return await _fetch_manifest(WeightServiceStub(channel), record)
    except grpc.aio.AioRpcError as error:
        raise _from_rpc(error, record, parts.netloc) from None
    except TimeoutError:
        raise TransientError(f"{record.version} from {record.uri} did not answer in {deadline_seconds:g} s") from None


async def _fetch(record: Version, cache: Path, deadline_seconds: float) -> tuple[Path, Manifest]:
    parts = urlsplit(record.uri)
    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
        manifest = await asyncio.to_thread(verify_version, folder, record)
        return folder, manifest
    if parts.scheme != "grpc" or not parts.netloc:
        raise WeightError(f"{record.version} is announced at {record.uri!r}; only file:// and grpc:// can be read")
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(_InterruptedError),
        stop=stop_after_delay(deadline_seconds),
        wait=wait_exponential_jitter(multiplier=0.05, max=2.0),
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            return await _download(parts.netloc, record, cache)
    raise AssertionError("unreachable: the retry loop returns or raises")


class _InterruptedError(TransientError):
    """The server went away in the middle: what arrived is kept, and the next try continues after it."""


async def _download(address: str, record: Version, cache: Path) -> tuple[Path, Manifest]:
    async with grpc.aio.insecure_channel(address, options=_KEEPALIVE) as channel:
        stub = WeightServiceStub(channel)
        try:
            manifest = await _fetch_manifest(stub, record)
            final = cache / manifest.run_id / str(manifest.version)
            if final.exists():
                try:
                    return final, await asyncio.to_thread(verify_version, final, record)
                except (WeightError, TransientError):
                    await asyncio.to_thread(shutil.rmtree, final)
            part = final.with_name(f".{manifest.version}.{record.manifest_hash[:16]}.part")
            part.mkdir(parents=True, exist_ok=True)
            for file, entries in manifest.files.items():
                await _fetch_file(stub, record, part / file, file_size(entries))
        except grpc.aio.AioRpcError as error:
            raise _from_rpc(error, record, address) from None
    await asyncio.to_thread(_verify_download, part, manifest)
    await asyncio.to_thread(seal, part, manifest, final)
    return final, manifest


async def _fetch_manifest(stub: WeightServiceAsyncStub, record: Version) -> Manifest:
    request = pb.GetManifestRequest(version=str(record.version), manifest_hash=record.manifest_hash)
    response = await stub.GetManifest(request)
    return _checked_manifest(response.manifest, record)


async def _fetch_file(stub: WeightServiceAsyncStub, record: Version, path: Path, size: int) -> None:
    """Append what is missing of one file; what an earlier try wrote stays."""
    with path.open("ab", buffering=0) as file:
        position = file.tell()
        if position < size:
            request = pb.FetchFileRequest(
                version=str(record.version), manifest_hash=record.manifest_hash, file=path.name, offset=position
            )
            async for chunk in stub.FetchFile(request):
                position += file.write(chunk.data)
        await asyncio.to_thread(os.fsync, file.fileno())
    if position < size:
        raise _InterruptedError(f"{path.name} of {record.version} ended at byte {position} of {size}")


def _from_rpc(error: grpc.aio.AioRpcError, record: Version, address: str) -> TransientError:
    text = f"{record.version} from {address}: {error.code().name}: {error.details()}"
    return TransientError(text) if error.code() == grpc.StatusCode.NOT_FOUND else _InterruptedError(text)


def verify_version(folder: Path, record: Version) -> Manifest:
    """Prove that a complete version in `folder` is the announced one.

    Raises:
        WeightError: it is not.
        TransientError: it is not there: not yet visible, or collected.
    """
    try:
        raw = (folder / MANIFEST_FILE).read_bytes()
        manifest = _checked_manifest(raw, record)
        _verify_shards(folder, manifest)
    except OSError as error:
        raise TransientError(f"{record.version} cannot be read at {folder}: {error}") from None
    return manifest


def _checked_manifest(raw: bytes, record: Version) -> Manifest:
    found = manifest_hash(raw)
    if found != record.manifest_hash:
        raise WeightError(f"manifest of {record.version} has hash {found}, announced was {record.manifest_hash}")
    manifest = Manifest.from_json(raw)
    if manifest.version != record.version:
        raise WeightError(f"manifest names {manifest.version}, announced was {record.version}")
    return manifest


def _verify_download(part: Path, manifest: Manifest) -> None:
    try:
        _verify_shards(part, manifest)
    except WeightError:
        shutil.rmtree(part)  # or the next try would continue behind the wrong bytes
        raise


def _verify_shards(folder: Path, manifest: Manifest) -> None:
    with ThreadPoolExecutor(_VERIFY_THREADS, thread_name_prefix="verify") as threads:
        checks = [
            threads.submit(_verify_shard, folder / check_plain_name("file", file), entries)
            for file, entries in manifest.files.items()
        ]
        for check in checks:
            check.result()


def _verify_shard(path: Path, entries: tuple[TensorEntry, ...]) -> None:
    size = path.stat().st_size
    if size != file_size(entries):
        raise WeightError(f"{path} has {size} bytes, its manifest says {file_size(entries)}")
    with path.open("rb", buffering=0) as file:
        if file.read(HEADER_BYTES) != header_bytes(entries):
            raise WeightError(f"{path} has another header than its manifest says")
        buffer = memoryview(bytearray(_PIECE))
        for entry in entries:
            digest = hashlib.sha256()
            left = entry.nbytes
            while left:
                count = file.readinto(buffer[: min(left, _PIECE)])
                if not count:
                    raise WeightError(f"{path} ends inside tensor {entry.name!r}")
                digest.update(buffer[:count])
                left -= count
            if digest.hexdigest() != entry.checksum:
                raise WeightError(
                    f"tensor {entry.name!r} in {path} has checksum {digest.hexdigest()}, "
                    f"its manifest says {entry.checksum}"
                )
