from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sluice.types import PolicyVersion, Version
from sluice.weights.manifest import Manifest
from sluice.weights.publish import VersionWriter
from sluice.weights.server import WeightServer

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
Publish = Callable[..., tuple[Path, Manifest]]
Serve = Callable[..., Awaitable[WeightServer]]

TENSORS: Tensors = {
    "model.embed_tokens.weight": ("BF16", (32, 8), bytes(range(256)) * 2),
    "model.layers.0.mlp.up_proj.weight": ("F32", (4, 8), bytes(range(128))),
    "model.norm.weight": ("BF16", (8,), b"\x01\x80" * 8),
    "model.empty": ("F32", (0, 3), b""),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "weights"


@pytest.fixture
def publish(root: Path) -> Publish:
    """Publish a version of run `run-a` under `root`; several shards unless told otherwise."""

    def write(
        version: PolicyVersion, tensors: Tensors = TENSORS, parent: Manifest | None = None, shard_bytes: int = 300
    ) -> tuple[Path, Manifest]:
        writer = VersionWriter(
            root, "run-a", version, parent=parent, optimizer_updates=7, config_hash="c0ffee", shard_bytes=shard_bytes
        )
        for name, (dtype, shape, data) in tensors.items():
            writer.add(name, dtype, shape, data)
        return writer.commit()

    return write


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a weight server for a folder; all that still run at the end are stopped."""
    servers: list[WeightServer] = []

    async def start(root: Path, bind: str = "127.0.0.1:0") -> WeightServer:
        servers.append(await WeightServer.start(root, bind))
        return servers[-1]

    yield start
    for server in servers:
        await server.stop(grace_seconds=0)


def announce(manifest: Manifest, uri: str) -> Version:
    """The TRAINER record that announces a version."""
    return Version(manifest.version, uri, manifest.hash, chain="")
