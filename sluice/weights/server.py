"""Serve committed versions over gRPC: the trainer its own, a worker those in its cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import grpc

from sluice.errors import ConfigError
from sluice.types import PolicyVersion
from sluice.weights.manifest import MANIFEST_FILE, Manifest, manifest_hash
from sluice.wire.v1 import weights_pb2 as pb
from sluice.wire.v1.weights_pb2_grpc import WeightServiceServicer, add_WeightServiceServicer_to_server

CHUNK_BYTES = 1 << 20


class WeightServer:
    """A running server; `address` is what goes into `grpc://<address>` when the bind host is reachable as it is."""

    def __init__(self, server: grpc.aio.Server, host: str, port: int) -> None:
        self._server = server
        self.port = port
        self.address = f"{host}:{port}"

    @classmethod
    async def start(cls, root: Path, bind: str) -> Self:
        """Serve every version under `root`, those committed later too.

        Args:
            bind: `host:port`; port 0 takes a free one.

        Raises:
            ConfigError: the address cannot be bound.
        """
        server = grpc.aio.server()
        add_WeightServiceServicer_to_server(_Service(root), server)
        host = bind.rsplit(":", 1)[0]
        try:
            port = server.add_insecure_port(bind)
        except RuntimeError:
            await server.stop(None)  # one that is only forgotten lingers in gRPC's own threads
            raise ConfigError(f"cannot serve weights at {bind!r}: the address is taken or is not ours") from None
        await server.start()
        return cls(server, host, port)

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Stop; streams still running after `grace_seconds` are cut, and their readers continue elsewhere."""
        await self._server.stop(grace_seconds)


class _Service(WeightServiceServicer):
    def __init__(self, root: Path) -> None:
        self._root = root

    async def GetManifest(  # noqa: N802 (the name is the wire's)
        self, request: pb.GetManifestRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetManifestResponse:
        _, raw = await self._find(request.version, request.manifest_hash, context)
        return pb.GetManifestResponse(manifest=raw)

    async def FetchFile(  # noqa: N802 (the name is the wire's)
        self, request: pb.FetchFileRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.FetchFileResponse]:
        folder, raw = await self._find(request.version, request.manifest_hash, context)
        if request.file not in Manifest.from_json(raw).files:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{request.version} has no file {request.file!r}")
        with (folder / request.file).open("rb", buffering=0) as file:
            file.seek(request.offset)
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield pb.FetchFileResponse(data=data)

    async def _find(
        self, version: str, wanted_hash: str, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[Path, bytes]:
        try:
            name = str(PolicyVersion.parse(version))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        found = await asyncio.to_thread(self._search, name, wanted_hash)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{name} with manifest {wanted_hash} is not held here")
        return found

    def _search(self, name: str, wanted_hash: str) -> tuple[Path, bytes] | None:
        for path in self._root.glob(f"*/{name}/{MANIFEST_FILE}"):
            raw = path.read_bytes()
            if manifest_hash(raw) == wanted_hash:
                return path.parent, raw
        return None
