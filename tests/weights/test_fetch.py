"""What a worker can rely on: it never serves bytes that are not the published ones, and a cut download goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from safetensors import safe_open

from sluice.errors import ConfigError, TransientError, WeightError
from sluice.types import PolicyVersion, Version
from sluice.weights.fetch import fetch_version
from sluice.weights.manifest import HEADER_BYTES, MANIFEST_FILE, Manifest
from tests.weights.conftest import Publish, Serve, announce

V3 = PolicyVersion(3, 1)


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("position", [20, HEADER_BYTES - 1, HEADER_BYTES, -1])
async def test_one_flipped_bit_in_header_padding_or_data_is_found(
    publish: Publish, tmp_path: Path, position: int
) -> None:
    folder, manifest = publish(V3)
    flip(folder / manifest.tensors[0].file, position)

    with pytest.raises(WeightError, match=r"checksum|header"):
        await fetch_version(announce(manifest, folder.as_uri()), tmp_path, 10)


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda raw: raw[:100]])
async def test_a_file_that_is_too_short_or_too_long_is_found(
    publish: Publish, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    folder, manifest = publish(V3)
    path = folder / manifest.tensors[0].file
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(WeightError, match="its manifest says"):
        await fetch_version(announce(manifest, folder.as_uri()), tmp_path, 10)


async def test_a_manifest_other_than_the_announced_one_is_refused(publish: Publish, tmp_path: Path) -> None:
    folder, manifest = publish(V3)
    other_folder, other = publish(PolicyVersion(4, 1))

    with pytest.raises(WeightError, match="announced was"):
        await fetch_version(announce(manifest, other_folder.as_uri()), tmp_path, 10)
    with pytest.raises(WeightError, match=r"names v4\.1, announced was v3\.1"):
        await fetch_version(Version(V3, other_folder.as_uri(), other.hash, ""), tmp_path, 10)
    flip(folder / MANIFEST_FILE, 30)
    with pytest.raises(WeightError, match="announced was"):
        await fetch_version(announce(manifest, folder.as_uri()), tmp_path, 10)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("format", 2, "format 2"),
        ("kind", "delta", "'delta'"),
        ("run_id", "../../etc", "plain name"),
        ("version", "3", "cannot be read"),
        ("tensors", [{}], "cannot be read"),
    ],
)
def test_a_manifest_this_program_cannot_follow_is_refused(publish: Publish, key: str, value: object, says: str) -> None:
    _, manifest = publish(V3)
    fields = json.loads(manifest.to_json()) | {key: value}
    with pytest.raises(WeightError, match=says):
        Manifest.from_json(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("file", "../secret.safetensors", "plain name"),
        ("file", "x.bin", "no safetensors file"),
        ("offset", 0, "expected"),
        ("nbytes", 5, "cannot have 5 bytes"),
        ("checksum", "00", "not a hex SHA-256"),
        ("name", "model.norm.weight", "names a tensor twice"),
    ],
)
def test_a_tensor_that_does_not_fit_into_its_file_is_refused(
    publish: Publish, key: str, value: object, says: str
) -> None:
    _, manifest = publish(V3)
    fields = json.loads(manifest.to_json())
    fields["tensors"][0][key] = value
    with pytest.raises(WeightError, match=says):
        Manifest.from_json(json.dumps(fields).encode())


async def test_a_version_that_is_not_there_or_at_an_unknown_place_says_so(publish: Publish, tmp_path: Path) -> None:
    folder, manifest = publish(V3)
    with pytest.raises(TransientError, match="cannot be read"):
        await fetch_version(announce(manifest, (folder.parent / "v9.9").as_uri()), tmp_path, 10)
    with pytest.raises(WeightError, match="only file:// and grpc://"):
        await fetch_version(announce(manifest, "s3://bucket"), tmp_path, 10)


async def test_a_version_is_streamed_into_the_cache_and_served_on_from_there(
    root: Path, publish: Publish, tmp_path: Path, serve: Serve
) -> None:
    folder, manifest = publish(V3)
    trainer = await serve(root)
    first, _ = await fetch_version(announce(manifest, f"grpc://{trainer.address}"), tmp_path / "a", 10)
    worker = await serve(tmp_path / "a")
    second, read = await fetch_version(announce(manifest, f"grpc://{worker.address}"), tmp_path / "b", 10)

    assert (first, second) == (tmp_path / "a/run-a/v3.1", tmp_path / "b/run-a/v3.1")
    assert read == manifest
    for path in folder.iterdir():
        assert (second / path.name).read_bytes() == path.read_bytes()
    with safe_open(second / manifest.tensors[0].file, framework="numpy") as shard:
        assert manifest.tensors[0].name in set(shard.keys())
    assert [path.name for path in second.parent.iterdir()] == ["v3.1"]


async def test_several_workers_read_one_version_at_once(
    root: Path, publish: Publish, tmp_path: Path, serve: Serve
) -> None:
    _, manifest = publish(V3)
    server = await serve(root)
    record = announce(manifest, f"grpc://{server.address}")

    found = await asyncio.gather(*(fetch_version(record, tmp_path / str(i), 20) for i in range(5)))

    assert {read.hash for _, read in found} == {manifest.hash}


async def test_a_server_that_holds_another_or_no_such_version_says_not_found(
    root: Path, publish: Publish, tmp_path: Path, serve: Serve
) -> None:
    _, manifest = publish(V3)
    server = await serve(root)
    for record in (
        Version(PolicyVersion(4, 1), f"grpc://{server.address}", manifest.hash, ""),
        Version(V3, f"grpc://{server.address}", "0" * 64, ""),
    ):
        with pytest.raises(TransientError, match="NOT_FOUND"):
            await fetch_version(record, tmp_path, 10)


async def test_wrong_bytes_from_a_server_are_refused_and_do_not_poison_the_next_try(
    root: Path, publish: Publish, tmp_path: Path, serve: Serve
) -> None:
    folder, manifest = publish(V3)
    path = folder / manifest.tensors[0].file
    good = path.read_bytes()
    flip(path, -1)
    server = await serve(root)
    record = announce(manifest, f"grpc://{server.address}")
    with pytest.raises(WeightError, match="checksum"):
        await fetch_version(record, tmp_path / "cache", 10)

    path.write_bytes(good)
    found, _ = await fetch_version(record, tmp_path / "cache", 10)
    assert (found / path.name).read_bytes() == good

    flip(found / path.name, -1)
    again, _ = await fetch_version(record, tmp_path / "cache", 10)
    assert (again / path.name).read_bytes() == good


class CutProxy:
    """Forwards TCP to a server and cuts the line for good after `limit` bytes towards the client."""

    def __init__(self, port: int, limit: int) -> None:
        self._port, self._left = port, limit
        self.forwarded = 0
        self.cut = asyncio.Event()

    async def __aenter__(self) -> CutProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pump(reader, up_writer, counted=False))
            tasks.create_task(self._pump(up_reader, writer, counted=True))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        try:
            while (data := await reader.read(1 << 14)) and self._left > 0:
                if counted:
                    self._left -= len(data)
                    self.forwarded += len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        if self._left <= 0:
            self.cut.set()
        writer.close()


@pytest.fixture
async def big(root: Path, publish: Publish) -> AsyncIterator[tuple[Path, Manifest]]:
    data = b"".join(i.to_bytes(4, "little") for i in range(1 << 20))
    yield publish(V3, {f"t{i}": ("F32", (1 << 20,), data) for i in range(3)}, shard_bytes=8 << 20)


async def test_a_transfer_cut_in_the_middle_is_resumed_from_another_server_where_it_stopped(
    root: Path, big: tuple[Path, Manifest], tmp_path: Path, serve: Serve
) -> None:
    folder, manifest = big
    first, second = [await serve(root) for _ in range(2)]
    cache = tmp_path / "cache"
    async with CutProxy(first.port, 5 << 20) as proxy:
        record = announce(manifest, f"grpc://127.0.0.1:{proxy.port}")
        fetching = asyncio.create_task(fetch_version(record, cache, 60))
        await proxy.cut.wait()
        await first.stop(grace_seconds=0)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
    arrived = sum(path.stat().st_size for path in cache.glob("run-a/.v3.1.*.part/*"))
    assert 0 < arrived < 6 << 20
    assert not (cache / "run-a/v3.1").exists()

    async with CutProxy(second.port, 1 << 30) as proxy:
        found, _ = await fetch_version(announce(manifest, f"grpc://127.0.0.1:{proxy.port}"), cache, 20)
        resumed = proxy.forwarded

    total = sum((folder / file).stat().st_size for file in manifest.files)
    assert total - arrived <= resumed < total - arrived + (1 << 20)
    for file in manifest.files:
        assert (found / file).read_bytes() == (folder / file).read_bytes()


async def test_one_call_outlives_a_restart_of_the_server(
    root: Path, big: tuple[Path, Manifest], tmp_path: Path, serve: Serve
) -> None:
    _, manifest = big
    server = await serve(root)
    port = server.port
    async with CutProxy(port, 5 << 20) as proxy:
        front = proxy.port
        fetching = asyncio.create_task(
            fetch_version(announce(manifest, f"grpc://127.0.0.1:{front}"), tmp_path / "cache", 30)
        )
        await proxy.cut.wait()
    await server.stop(grace_seconds=0)
    await serve(root, f"127.0.0.1:{front}")
    _, read = await fetching
    assert read == manifest


async def test_a_server_that_is_away_ends_the_wait_at_its_deadline(publish: Publish, tmp_path: Path) -> None:
    _, manifest = publish(V3)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:9"):
        await fetch_version(announce(manifest, "grpc://127.0.0.1:9"), tmp_path, 0.5)


async def test_an_address_that_cannot_be_bound_is_a_fault_of_the_configuration(root: Path, serve: Serve) -> None:
    with pytest.raises(ConfigError, match="cannot serve weights"):
        await serve(root, "192.0.2.1:1")


async def test_only_files_of_the_manifest_are_served(root: Path, publish: Publish, serve: Serve) -> None:
    from sluice.wire.v1 import weights_pb2 as pb
    from sluice.wire.v1.weights_pb2_grpc import WeightServiceStub

    _, manifest = publish(V3)
    (root / "secret").write_text("x")
    server = await serve(root)
    async with grpc.aio.insecure_channel(server.address) as channel:
        request = pb.FetchFileRequest(version="v3.1", manifest_hash=manifest.hash, file="../../secret")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in WeightServiceStub(channel).FetchFile(request):
                pass
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
