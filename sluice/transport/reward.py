"""Client of the reward service: spreads work over its replicas and outlives the loss of any of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TypeAlias, TypeVar

import grpc
import grpc.aio
from tenacity import AsyncRetrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from sluice.cancellation import end_tasks
from sluice.errors import ConfigError, PermanentError, TransientError, WireError
from sluice.transport.together import Together
from sluice.types import ScoreItem, Verdict
from sluice.wire.score import decode_response, encode_request
from sluice.wire.v1 import reward_pb2, reward_pb2_grpc

R = TypeVar("R")
_Stub: TypeAlias = "reward_pb2_grpc.RewardServiceAsyncStub"

MAX_MESSAGE_BYTES = 32 << 20
CALL_BYTES = 8 << 20
CALL_ITEMS = 256
"""A call holds at most so many items: a request larger than that is spread over the replicas."""
FIRST_PAUSE_SECONDS = 0.1
"""A second attempt comes within this time; from then on the pauses grow, to MAX_PAUSE_SECONDS."""
MAX_PAUSE_SECONDS = 2.0
PATIENCE_SECONDS = 5.0
"""The default time limit of one check. A replica that has not answered by then has much to do, or hangs."""
LOOK_SECONDS = 1.0
"""Time between two looks for another replica with less to do."""

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
    # A host that vanished sends no reset: pings find it, also while a call is open, if only after a minute.
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
    stub: _Stub
    open_calls: int = 0
    avoid_until: float = 0.0
    """It failed, or another one was faster by far: until then it is asked last."""


class RewardClient:
    """Asks for verdicts; a call that fails is tried at another replica until the deadline.

    A replica may also hang: stopped, swapping, cut off without a word. So after `patience_seconds` without an answer
    another one is asked as well, if it has fewer open calls, and the first answer counts. The first replica goes on:
    many slow checks may take that long, and a verdict is the same wherever it is made.

    Args:
        addresses: host:port of each replica, or `dns:///name:port` for a name with several behind it.
        deadline_seconds: time for one `score`, attempts and pauses included.
        deadline_knob: the setting that this deadline comes from, for error messages.
        patience_seconds: time for one replica before another is asked as well.
        credentials: TLS; None talks in the clear.

    Raises:
        ConfigError: no address, or a deadline that is not positive.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        deadline_seconds: float,
        deadline_knob: str = "deadline_seconds",
        patience_seconds: float = PATIENCE_SECONDS,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        if not addresses:
            raise ConfigError("no address of a reward service is given")
        if deadline_seconds <= 0:
            raise ConfigError(f"{deadline_knob}={deadline_seconds} must be above 0")
        self._addresses = tuple(addresses)
        self._deadline, self._knob = deadline_seconds, deadline_knob
        self._patience = patience_seconds
        self._credentials = credentials
        self.count_retry: Callable[[], None] = lambda: None
        """Called for each attempt that is made again."""
        self._replicas: list[_Replica] = []
        self._order: Iterator[int] = cycle(range(len(self._addresses)))
        self._together = Together(self._score)

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """One verdict an item, in their order; judging twice is harmless, so lost answers are simply asked for again.

        Raises:
            TransientError: no replica answered before the deadline.
            PermanentError: a replica refuses the request as such, or one item is larger than a message may be.
            WireError: the answer does not fit the request.
        """
        return await self._together.score(items)

    async def _score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        answers = await self._spread(items, lambda stub, request, seconds: stub.Score(request, timeout=seconds))
        return [verdict for part, answer in answers for verdict in decode_response(part, answer)]

    async def check_truths(self, items: Sequence[ScoreItem]) -> list[str]:
        """What is wrong with the ground truth of each item, in their order; "" where nothing is.

        Raises:
            TransientError, PermanentError, WireError: as `score`.
        """
        answers = await self._spread(items, lambda stub, request, seconds: stub.CheckTruths(request, timeout=seconds))
        if wrong := [len(part) for part, answer in answers if len(answer.faults) != len(part)]:
            raise WireError(f"asked about {wrong[0]} ground truths and was told about another number")
        return [fault for _, answer in answers for fault in answer.faults]

    async def verifiers(self) -> str:
        """Names, labels and data sources of a replica's verifiers, as one text: the same as long as none has changed.

        Raises:
            TransientError, PermanentError: as `score`.
        """
        request = reward_pb2.ListVerifiersRequest()
        answer = await self._first_answer(lambda stub, seconds: stub.ListVerifiers(request, timeout=seconds))
        return " ".join(f"{one.label}:{','.join(one.data_sources)}" for one in answer.verifiers)

    async def close(self) -> None:
        """Close the connections; calls still open fail."""
        await self._together.close()
        for replica in self._replicas:
            await replica.channel.close()
        self._replicas = []

    async def _spread(
        self, items: Sequence[ScoreItem], ask: Callable[[_Stub, reward_pb2.ScoreRequest, float], Awaitable[R]]
    ) -> list[tuple[Sequence[ScoreItem], R]]:
        """Ask about all items, in as many calls as it takes: each part of them with its answer."""

        async def call(part: Sequence[ScoreItem]) -> R:
            request = encode_request(part)
            if request.ByteSize() > MAX_MESSAGE_BYTES:
                limit = f"{MAX_MESSAGE_BYTES} bytes (MAX_MESSAGE_BYTES)"
                raise PermanentError(f"item {part[0].id!r} takes {request.ByteSize()} bytes; a message holds {limit}")
            return await self._first_answer(lambda stub, seconds: ask(stub, request, seconds))

        parts = list(_parts(items))
        if len(parts) == 1:  # as nearly always: a group
            return [(parts[0], await call(parts[0]))]
        calls = [asyncio.ensure_future(call(part)) for part in parts]
        try:
            return list(zip(parts, await asyncio.gather(*calls), strict=True))
        finally:
            for open_call in calls:
                open_call.cancel()

    async def _first_answer(self, ask: Callable[[_Stub, float], Awaitable[R]]) -> R:
        """What the first replica answers; the last failure when all that were asked have failed."""
        deadline = time.monotonic() + self._deadline
        asked: list[_Replica] = []
        lines = {asyncio.ensure_future(self._attempts(ask, deadline, asked))}
        patience = self._patience
        try:
            while True:
                done, lines = await asyncio.wait(lines, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for line in sorted(done, key=lambda line: line.exception() is not None):
                    if not lines or not isinstance(line.exception(), TransientError):
                        self._overtake(asked)
                        return line.result()
                if not done and self._less_to_do(asked):
                    self.count_retry()
                    lines.add(asyncio.ensure_future(self._attempts(ask, deadline, asked)))
                patience = LOOK_SECONDS
        finally:
            await end_tasks(list(lines))

    async def _attempts(self, ask: Callable[[_Stub, float], Awaitable[R]], deadline: float, asked: list[_Replica]) -> R:
        """One replica after the other; `asked` are those that have this request now, and gets the present one.

        The first attempt goes without the machinery of the others, which costs as much as the call.
        """
        pause = random.uniform(0.0, FIRST_PAUSE_SECONDS)
        try:
            return await self._attempt_once(ask, deadline, asked)
        except TransientError:
            if time.monotonic() + pause >= deadline:
                raise
        self.count_retry()
        await asyncio.sleep(pause)
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            stop=stop_before_delay(deadline - time.monotonic()),
            wait=wait_random_exponential(multiplier=2 * FIRST_PAUSE_SECONDS, max=MAX_PAUSE_SECONDS),
            before_sleep=lambda _: self.count_retry(),
            reraise=True,
        )
        answer: R = await attempts(self._attempt_once, ask, deadline, asked)
        return answer

    async def _attempt_once(
        self, ask: Callable[[_Stub, float], Awaitable[R]], deadline: float, asked: list[_Replica]
    ) -> R:
        replica = self._pick(asked)
        replica.open_calls += 1
        asked.append(replica)
        try:
            return await ask(replica.stub, max(0.001, deadline - time.monotonic()))
        except grpc.aio.AioRpcError as error:
            detail = f"reward service at {replica.address}: {error.code().name}: {error.details()}"
            if error.code() in _FINAL:
                raise PermanentError(detail) from None
            replica.avoid_until = time.monotonic() + MAX_PAUSE_SECONDS
            raise TransientError(f"{detail}; gave up after {self._deadline:g} s ({self._knob})") from None
        finally:
            replica.open_calls -= 1
            asked.remove(replica)

    def _overtake(self, asked: Sequence[_Replica]) -> None:
        """Others are preferred for a while to those that have a request which somebody else has answered."""
        for replica in asked:
            replica.avoid_until = time.monotonic() + self._patience

    def _less_to_do(self, asked: Sequence[_Replica]) -> bool:
        """Whether a replica that was not asked has fewer open calls than those that were: else all are just busy."""
        now, least = time.monotonic(), min((replica.open_calls for replica in asked), default=0)
        others = (replica for replica in self._replicas if replica not in asked and replica.avoid_until <= now)
        return any(replica.open_calls < least for replica in others)

    def _pick(self, asked: Sequence[_Replica]) -> _Replica:
        """One that does not have the request yet, whose last failure is past, with the fewest open calls."""
        if not self._replicas:
            self._replicas = [self._connect(address) for address in self._addresses]
        start = next(self._order)
        turn = self._replicas[start:] + self._replicas[:start]
        now = time.monotonic()
        return min(turn, key=lambda one: (one in asked, max(one.avoid_until, now), one.open_calls))

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
