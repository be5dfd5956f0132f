"""The gRPC face of the service: Score and ListVerifiers, health and reflection."""

from __future__ import annotations

import time

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from services.reward import metrics
from services.reward.agreement import SecondOpinion
from services.reward.loop import Judges, score
from services.reward.pool import Pool
from services.reward.routing import Routes
from services.reward.truths import truth_faults
from sluice.errors import PermanentError, TransientError
from sluice.wire.score import decode_request, encode_response
from sluice.wire.v1 import reward_pb2, reward_pb2_grpc

SERVICE = reward_pb2.DESCRIPTOR.services_by_name["RewardService"].full_name
MAX_MESSAGE_BYTES = 32 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Clients find a dead host by pings; a stricter server would answer those with a hang-up.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client looks a name up again only when a connection ends: so it finds replicas that were added meanwhile.
    ("grpc.max_connection_age_ms", 60_000),
    # Two servers on one port would share its calls by chance: a taken port must be an error.
    ("grpc.so_reuseport", 0),
]


class RewardServicer(reward_pb2_grpc.RewardServiceServicer):
    """Maps calls to `loop.score`, and its errors to status codes."""

    def __init__(
        self, pool: Pool, routes: Routes, judges: Judges | None = None, second: SecondOpinion | None = None
    ) -> None:
        self._pool, self._routes, self._second = pool, routes, second
        self._judges = pool if judges is None else judges

    async def Score(  # noqa: N802  the name is the schema's
        self,
        request: reward_pb2.ScoreRequest,
        context: grpc.aio.ServicerContext[reward_pb2.ScoreRequest, reward_pb2.ScoreResponse],
    ) -> reward_pb2.ScoreResponse:
        items = decode_request(request)
        code = grpc.StatusCode.CANCELLED
        begun = time.monotonic()
        try:
            verdicts = await score(items, self._routes, self._judges)
            code = grpc.StatusCode.OK
        except TransientError as error:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            await context.abort(code, str(error))
        except PermanentError as error:
            code = grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(code, str(error))
        finally:
            metrics.REQUESTS.labels(code.name).inc()
            metrics.REQUEST_SECONDS.observe(time.monotonic() - begun)
            metrics.REQUEST_ITEMS.observe(len(items))
        if self._second is not None:
            self._second.consider(items, verdicts, self._routes)
        return encode_response(items, verdicts)

    async def CheckTruths(  # noqa: N802  the name is the schema's
        self,
        request: reward_pb2.ScoreRequest,
        context: grpc.aio.ServicerContext[reward_pb2.ScoreRequest, reward_pb2.CheckTruthsResponse],
    ) -> reward_pb2.CheckTruthsResponse:
        items = decode_request(request)
        routed = [self._routes.find(item.data_source) for item in items]
        try:
            return reward_pb2.CheckTruthsResponse(faults=await truth_faults(self._pool, items, routed))
        except TransientError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except PermanentError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def ListVerifiers(  # noqa: N802  the name is the schema's
        self,
        request: reward_pb2.ListVerifiersRequest,
        context: grpc.aio.ServicerContext[reward_pb2.ListVerifiersRequest, reward_pb2.ListVerifiersResponse],
    ) -> reward_pb2.ListVerifiersResponse:
        verifiers = [
            reward_pb2.Verifier(name=name, label=label, data_sources=self._routes.sources(name))
            for name, label in sorted(self._pool.labels.items())
        ]
        return reward_pb2.ListVerifiersResponse(
            verifiers=verifiers,
            timeout_seconds=self._pool.settings.timeout_seconds,
            memory_bytes=self._pool.settings.limits.memory_bytes,
        )


class RewardServer:
    """A started server; `port` is the one it listens on.

    Raises:
        ConfigError, OSError: at `start`, when the address is taken or malformed.
    """

    def __init__(self, servicer: RewardServicer) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        self._health = health_aio.HealthServicer()
        self.port = 0
        reward_pb2_grpc.add_RewardServiceServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, bind: str, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen on `bind`, in the clear unless credentials are given."""
        if credentials is None:
            self.port = self._server.add_insecure_port(bind)
        else:
            self.port = self._server.add_secure_port(bind, credentials)
        await self._server.start()
        await self.report(True)

    async def report(self, serving: bool) -> None:
        """Set what health checks of the service and of the server as a whole are told."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def stop(self, seconds: float) -> None:
        """Turn new calls away, give open ones `seconds` to finish."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(seconds)
