"""The connection to NATS, and the streams as `sluice.wire.subjects` names them."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self, TypeVar

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StreamConfig
from nats.js.errors import APIError, BucketNotFoundError, NotFoundError
from nats.js.kv import KeyValue
from prometheus_client import Counter
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from sluice.errors import ConfigError, TransientError
from sluice.telemetry import get_logger
from sluice.transport.bursts import Answers, Burst, Message, bursts, runs
from sluice.transport.connecting import connect
from sluice.transport.streams import StreamLimits, stream_table
from sluice.wire import subjects

T = TypeVar("T")
RETRYABLE = (
    TimeoutError,
    nats.errors.NoRespondersError,
    nats.js.errors.NoStreamResponseError,
    nats.js.errors.ServiceUnavailableError,
)
"""What a request answers while the server restarts or is full: the caller tries again until its deadline."""
CONNECT_SECONDS = 10.0
"""A server that is only just starting is waited for; one that is not there is the user's fault to mend."""
BUCKET_STREAM = "KV_"
"""How the stream below a key-value bucket is called."""
REMIND_SECONDS = 10.0
"""Between two lines of the log about requests that have to be repeated."""
ANSWER_SECONDS = 2.0
"""A request without an answer for this long is asked again: the server that took it may be gone."""
RETRIES = Counter("sluice_nats_retries_total", "Requests to NATS that had to be repeated.")
"""A metric of every service that has a connection."""


class Bus:
    """One connection to NATS. What crosses it is in `sluice.transport.{log,queues,lease,evaluations}`."""

    def __init__(self, client: Client, answers: Answers, deadline_seconds: float) -> None:
        self.nc = client
        self.js: JetStreamContext = client.jetstream(timeout=answers.seconds)
        self._burst = Burst(client, answers)
        self._log = get_logger("nats").bind(deadline_seconds=deadline_seconds)
        self._said_at = -math.inf
        self.deadline_seconds = deadline_seconds

    @classmethod
    async def connect(cls, url: str, name: str, deadline_seconds: float = 60.0) -> Self:
        """Connect and keep connected: the client reconnects for ever, requests have their own deadlines.

        Args:
            url: `nats://host:port`, several with commas between.

        Raises:
            TransientError, ConfigError: as `connecting.connect`.
        """
        client = await connect(url, name, min(CONNECT_SECONDS, deadline_seconds))
        answers = await Answers.open(client, min(deadline_seconds, ANSWER_SECONDS))
        return cls(client, answers, deadline_seconds)

    async def close(self) -> None:
        """Send what is buffered, then disconnect; a server that is away is not waited for, and spoils no good end."""
        if self.nc.is_connected:
            await self._quietly(self.nc.flush(timeout=2))
        await self._quietly(self.nc.close())

    async def _quietly(self, step: Awaitable[object]) -> None:
        """At the end nothing is left that somebody waits for: what was not sent had its answers waited for before."""
        try:
            await step
        except (OSError, nats.errors.Error) as error:
            self._log.warning("nats_not_closed", error=str(error))

    def retrying(self, where: str) -> AsyncRetrying:
        """Retry what a restarting or full server refuses, with back-off and jitter, until the bus deadline.

        Args:
            where: the stream, subject or bucket that is asked, for the log.
        """
        return AsyncRetrying(
            retry=retry_if_exception_type(RETRYABLE),
            stop=stop_after_delay(self.deadline_seconds),
            wait=wait_exponential_jitter(multiplier=0.05, max=2.0, jitter=0.05),
            before_sleep=lambda state: self._note(where, state.outcome.exception() if state.outcome else None),
            reraise=True,
        )

    async def asking(self, where: str, request: Callable[[], Awaitable[T]]) -> T:
        """What `request` answers, made again as `retrying` does. Raises: what it raised last.

        The first try goes without the machinery of the others, which costs as much as a request.
        """
        try:
            return await request()
        except RETRYABLE as error:
            self._note(where, error)
        async for attempt in self.retrying(where):
            with attempt:
                return await request()
        raise AssertionError("unreachable: the retry loop returns or raises")

    def _note(self, where: str, error: BaseException | None) -> None:
        """Count a request that is made again; the log says now and then where and why, before the deadline does."""
        RETRIES.inc()
        if time.monotonic() - self._said_at >= REMIND_SECONDS:
            self._said_at = time.monotonic()
            self._log.warning("nats_retrying", where=where, error=str(error) or repr(error))

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> int:
        """Store one message and return its stream sequence.

        Raises:
            TransientError: the server did not take it within the bus deadline (down, or the stream is full).
            ConfigError: it is larger than the server's max_payload.
            nats.js.errors.APIError: the server refused it, e.g. a fence.
        """
        return (await self.publish_all([Message(subject, payload, headers)]))[0]

    async def publish_all(self, messages: Sequence[Message]) -> list[int]:
        """Store messages, many on their way at once, and return their stream sequences, in order.

        Raises: as `publish`; which of the others are stored is unknown then.
        """
        sequences: list[int] = []
        for burst in bursts(messages):
            stored: dict[int, int] = {}
            with self._storing(burst[0].subject, max(len(message.payload) for message in burst)):
                await self.asking(burst[0].subject, partial(self._burst.store, burst, stored))
            sequences += [stored[number] for number in range(len(burst))]
        return sequences

    async def publish_once(self, messages: Sequence[Message]) -> set[int]:
        """Store messages, at most a burst, and return the positions of those that the server has taken.

        None is tried again, and none is on its way any more: each was answered, or nobody answers.

        Raises:
            ConfigError: one is larger than the server's max_payload.
        """
        stored: dict[int, int] = {}
        with self._storing(messages[0].subject, max(len(message.payload) for message in messages)):
            try:
                await self._burst.store(messages, stored)
            except RETRYABLE as error:
                self._note(messages[0].subject, error)
        return set(stored)

    async def fetch_all(self, stream: str, sequences: Sequence[int]) -> dict[int, bytes]:
        """The messages of `stream` at `sequences`, neighbours in one request; without those that it does not hold."""
        found: dict[int, bytes] = {}

        async def fetch(run: range) -> None:
            while run:
                await self.asking(stream, partial(self._burst.fetch, stream, run, found))
                if run.start not in found:
                    return
                run = range(next((at for at in run if at not in found), run.stop), run.stop)

        await asyncio.gather(*map(fetch, runs(sequences)))
        return found

    async def purge(self, stream: str, subject: str, before: int | None = None) -> None:
        """Remove from `stream` all that it holds of `subject`, or what lies below the stream sequence `before`."""
        await self.asking(subject, partial(self._burst.purge, stream, subject, before))

    @contextmanager
    def _storing(self, subject: str, nbytes: int) -> Iterator[None]:
        """Say in our words why a message of at most `nbytes` was not stored."""
        try:
            yield
        except nats.errors.MaxPayloadError:
            raise ConfigError(
                f"a message of {nbytes} bytes on {subject!r} is over the NATS server's max_payload of "
                f"{self.nc.max_payload}; raise it there (a BATCH record grows with trainer.prompts_per_step, "
                "rollouts with rollout.max_response_length)"
            ) from None
        except RETRYABLE as error:
            raise TransientError(
                f"NATS did not store a message of {nbytes} bytes on {subject!r} within "
                f"{self.deadline_seconds:g} s ({error}); knob: SLUICE_NATS_DEADLINE_SECONDS, or the stream's size"
            ) from None

    async def ensure_streams(self, limits: StreamLimits | None = None) -> None:
        """Create what is missing. Idempotent, so every service may call it at start.

        Args:
            limits: the deployment's, which streams that are there already are brought to; only the coordinator gives
                them, the others take the streams as they find them.

        Raises:
            ConfigError: the server has no JetStream, or holds a stream of that name with other subjects.
        """
        try:
            for config in stream_table(limits or StreamLimits()):
                async for attempt in self.retrying(str(config.name)):
                    with attempt:
                        await self._ensure(config, update=limits is not None)
            if limits is not None:
                async for attempt in self.retrying(BUCKET_STREAM + "*"):
                    with attempt:
                        await self._replicate_buckets(limits.replicas)
        except (APIError, *RETRYABLE) as error:
            raise ConfigError(
                f"NATS cannot provide the streams ({error}); it needs JetStream with file storage"
            ) from None

    async def _ensure(self, config: StreamConfig, update: bool) -> None:
        try:
            found = (await self.js.stream_info(str(config.name))).config
        except NotFoundError:
            await self.js.add_stream(config)
            return
        wanted = (config.max_bytes or -1, config.num_replicas)
        if update and (found.max_bytes or -1, found.num_replicas) != wanted:
            await self.js.update_stream(config)

    async def _replicate_buckets(self, replicas: int) -> None:
        """Bring buckets that somebody made before the coordinator had its say to the deployment's replicas."""
        for info in await self.js.streams_info():
            if str(info.config.name).startswith(BUCKET_STREAM) and info.config.num_replicas != replicas:
                await self.js.update_stream(dataclasses.replace(info.config, num_replicas=replicas))

    async def bucket(self, name: str, ttl_seconds: float | None = None) -> KeyValue:
        """The key-value bucket, created when missing, on as many servers as the ledger; entries vanish `ttl_seconds`
        after their last change."""
        try:
            return await self.js.key_value(name)
        except BucketNotFoundError:
            config = KeyValueConfig(bucket=name, history=1, ttl=ttl_seconds, replicas=await self._replicas())
            return await self.js.create_key_value(config)

    async def _replicas(self) -> int:
        """The deployment's, as the coordinator has told NATS; 1 before that, which it mends when it starts."""
        try:
            return (await self.js.stream_info(subjects.LEDGER)).config.num_replicas or 1
        except NotFoundError:
            return 1
