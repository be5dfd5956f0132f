"""Client of the reward service: spreads work over its replicas and outlives the loss of any of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import grpc
import grpc.aio
from tenacity import AsyncRetrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from sluice.errors import ConfigError, PermanentError, TransientError
from sluice.types import ScoreItem, Verdict
from sluice.wire.score import decode_response, encode_request
from sluice.wire.v1 import reward_pb2, reward_pb2_grpc

MAX_MESSAGE_BYTES = 32 << 20
CALL_BYTES = 8 << 20
CALL_ITEMS = 256
"""A call holds at most so many items: a request larger than that is spread over the replicas."""
MAX_PAUSE_SECONDS = 2.0

_FINAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)
_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A host that vanished sends no reset: pings find it within 15 s, also while a call is open.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A replica that comes back is used again within seconds, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # One address may be a name with several replicas behind it.
    ("grpc.service_config", _SERVICE_CONFIG),
]


@dataclass(slots=True, eq=False)
class _Replica:
    address: str
    channel: grpc.aio.Channel
    stub: reward_pb2_grpc.RewardServiceAsyncStub
    open_calls: int = 0
    failed_at: float = 0.0


class RewardClient:
    """Asks for verdicts; a call that fails is tried at another replica until the deadline.

    Args:
        addresses: host:port of each replica, or `dns:///name:port` for a name with several behind it.
        deadline_seconds: time for one `score`, attempts and pauses included.
        deadline_knob: the setting that this deadline comes from, for error messages.
        attempt_seconds: time for one attempt at one replica; default: the whole deadline, since a hanging check may
            use most of it, and a dead replica shows itself by other means.
        credentials: TLS; None talks in the clear.

    Raises:
        ConfigError: no address, or a deadline that is not positive.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        deadline_seconds: float,
        deadline_knob: str = "deadline_seconds",
        attempt_seconds: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        if not addresses:
            raise ConfigError("no address of a reward service is given")
        if deadline_seconds <= 0:
            raise ConfigError(f"{deadline_knob}={deadline_seconds} must be above 0")
        self._addresses = tuple(addresses)
        self._deadline, self._knob = deadline_seconds, deadline_knob
        self._attempt = attempt_seconds or deadline_seconds
        self._credentials = credentials
        self.count_retry: Callable[[], None] = lambda: None
        """Called for each attempt that is made again."""
        self._replicas: list[_Replica] = []
        self._order: Iterator[int] = cycle(range(len(self._addresses)))

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """One verdict an item, in their order; judging twice is harmless, so lost answers are simply asked for again.

        Raises:
            TransientError: no replica answered before the deadline.
            PermanentError: a replica refuses the request as such, or one item is larger than a message may be.
            WireError: the answer does not fit the request.
        """
        calls = [asyncio.ensure_future(self._call(part)) for part in _parts(items)]
        try:
            return [verdict for verdicts in await asyncio.gather(*calls) for verdict in verdicts]
        finally:
            for call in calls:
                call.cancel()

    async def close(self) -> None:
        """Close the connections; calls still open fail."""
        for replica in self._replicas:
            await replica.channel.close()
        self._replicas = []

    async def _call(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        request = encode_request(items)
        if request.ByteSize() > MAX_MESSAGE_BYTES:
            limit = f"{MAX_MESSAGE_BYTES} bytes (MAX_MESSAGE_BYTES)"
            raise PermanentError(f"item {items[0].id!r} takes {request.ByteSize()} bytes; a message holds {limit}")
        deadline = time.monotonic() + self._deadline
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            stop=stop_before_delay(self._deadline),
            wait=wait_random_exponential(multiplier=0.1, max=MAX_PAUSE_SECONDS),
            before_sleep=lambda _: self.count_retry(),
            reraise=True,
        )
        response: reward_pb2.ScoreResponse = await attempts(self._attempt_once, request, deadline)
        return decode_response(items, response)

    async def _attempt_once(self, request: reward_pb2.ScoreRequest, deadline: float) -> reward_pb2.ScoreResponse:
        replica = self._pick()
        replica.open_calls += 1
        seconds = min(self._attempt, max(0.001, deadline - time.monotonic()))
        try:
            return await replica.stub.Score(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            detail = f"reward service at {replica.address}: {error.code().name}: {error.details()}"
            if error.code() in _FINAL:
                raise PermanentError(detail) from None
            replica.failed_at = time.monotonic()
            raise TransientError(f"{detail}; gave up after {self._deadline:g} s ({self._knob})") from None
        finally:
            replica.open_calls -= 1

    def _pick(self) -> _Replica:
        """The replica whose last failure is longest ago (never: best), then the one with the fewest open calls."""
        if not self._replicas:
            self._replicas = [self._connect(address) for address in self._addresses]
        start = next(self._order)
        turn = self._replicas[start:] + self._replicas[:start]
        recent = time.monotonic() - MAX_PAUSE_SECONDS
        return min(turn, key=lambda replica: (max(replica.failed_at, recent), replica.open_calls))

    def _connect(self, address: str) -> _Replica:
        if self._credentials is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            channel = grpc.aio.secure_channel(address, self._credentials, options=_OPTIONS)
        return _Replica(address, channel, reward_pb2_grpc.RewardServiceStub(channel))


def _parts(items: Sequence[ScoreItem]) -> Iterator[Sequence[ScoreItem]]:
    """Consecutive stretches of `items`, each small enough for a call."""
    start, size = 0, 0
    for index, item in enumerate(items):
        # Four bytes a character is UTF-8's most.
        bytes_ = 4 * (len(item.prompt) + len(item.response) + len(item.ground_truth) + len(item.extra_info))
        if index > start and (index - start == CALL_ITEMS or size + bytes_ > CALL_BYTES):
            yield items[start:index]
            start, size = index, 0
        size += bytes_
    if items:
        yield items[start:]
