"""Typed client of the runs REST API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from sluice.config import RunSpec
from sluice.errors import ConfigError, SluiceError, TransientError
from sluice.evaluation_views import RunEvaluationView
from sluice.group_views import GroupDetailView, GroupView
from sluice.prompt_views import PromptsView
from sluice.secrets import HIDDEN, PERCENT_ENCODE, redact_url
from sluice.views import (
    CheckpointView,
    DeletionView,
    EventView,
    Problem,
    RunAction,
    RunView,
    StepView,
    VersionView,
    WorkerView,
)

V = TypeVar("V", bound=BaseModel)
PAGE = 1000
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,200}")
RECONNECT_SECONDS = 300.0
"""How long an event stream that broke is tried again before it is an error: a failover, or a restart of NATS."""
RETRY_SECONDS = 0.5
RETRIED = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)
"""What a coordinator without NATS, or a proxy without a coordinator, answers for a while."""


CREATE_SECONDS = 600.0
"""A run is answered once its data has been read and its ground truths have been checked."""


class NoServerError(ConfigError):
    """Nothing listens where the user said that the coordinator is."""


class RunsClient:
    """One coordinator's API.

    The constructor and every method raise ConfigError for a fault of the caller (an address that is none, no server
    there, 4xx; one line, the problem's detail), and TransientError when a later try may succeed (502, 503, 504, a
    broken connection).
    """

    def __init__(self, url: str, token: str | None = None, timeout_seconds: float = 30.0) -> None:
        if redact_url(url) == HIDDEN:
            raise ConfigError(f"--at {HIDDEN}: {PERCENT_ENCODE}")
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
            # A proxy of the environment is for the world outside, never for a service on this machine.
            self._http = httpx.AsyncClient(
                base_url=self.url, headers=headers, timeout=timeout_seconds, trust_env=not local
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise ConfigError(f"--at {self.url}: {error}") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def create(self, spec: RunSpec, idempotency_key: str | None = None, checkpoint: str | None = None) -> RunView:
        """Create a run, or find it again by the key it was created with.

        Args:
            checkpoint: folder of a checkpoint, on the coordinator's machine, that it starts from instead of its model.

        Raises:
            ConfigError: also when the key cannot be sent: it is longer than 200 characters, or has others than the
                printable ones of ASCII.
        """
        headers = _key_header(idempotency_key) | {"Content-Type": "application/json"}
        query = {} if checkpoint is None else {"checkpoint": checkpoint}
        return await self._one(
            RunView,
            "POST",
            "/v1/runs",
            content=spec.canonical_json,
            headers=headers,
            params=query,
            timeout=CREATE_SECONDS,
        )

    async def fork(
        self, run_id: str, step: int | None, changes: dict[str, Any], idempotency_key: str | None = None
    ) -> RunView:
        """Create a run from a checkpoint of another one (None: its newest), with nested tables over that one's spec."""
        body = {"step": step, "changes": changes}
        headers = _key_header(idempotency_key)
        return await self._one(RunView, "POST", f"/v1/runs/{run_id}/fork", json=body, headers=headers)

    async def runs(self) -> tuple[RunView, ...]:
        """All runs, newest first, without their specs."""
        return tuple(await self._many(RunView, "/v1/runs"))

    async def get(self, run_id: str) -> RunView:
        return await self._one(RunView, "GET", f"/v1/runs/{run_id}")

    async def control(self, run_id: str, action: RunAction, reason: str = "", skip_batch: int | None = None) -> RunView:
        body = {"reason": reason} | ({} if skip_batch is None else {"skip_batch": skip_batch})
        return await self._one(RunView, "POST", f"/v1/runs/{run_id}/{action}", json=body)

    async def delete(self, run_id: str, keep_checkpoints: bool = False) -> DeletionView:
        """Delete a run that has ended; doing it again changes nothing, but for checkpoints that were to be kept."""
        query = {"keep_checkpoints": "true" if keep_checkpoints else "false"}
        return await self._one(DeletionView, "DELETE", f"/v1/runs/{run_id}", params=query)

    async def steps(self, run_id: str) -> tuple[StepView, ...]:
        """All training steps so far, in order."""
        found: list[StepView] = []
        while True:
            after = found[-1].step if found else -1
            page = await self._many(StepView, f"/v1/runs/{run_id}/steps", after=after, limit=PAGE)
            found += page
            if len(page) < PAGE:
                return tuple(found)

    async def groups(self, run_id: str, after: int = -1, limit: int = PAGE) -> tuple[GroupView, ...]:
        """Groups n > `after`, at most `limit` (up to 1000)."""
        return tuple(await self._many(GroupView, f"/v1/runs/{run_id}/groups", after=after, limit=limit))

    async def group(self, run_id: str, n: int) -> GroupDetailView:
        return await self._one(GroupDetailView, "GET", f"/v1/runs/{run_id}/groups/{n}")

    async def prompts(self, run_id: str, after: int = -1, limit: int = PAGE) -> PromptsView:
        """Counts of a run's prompts, and the history of rows > `after`, at most `limit` (up to 1000)."""
        return await self._one(
            PromptsView, "GET", f"/v1/runs/{run_id}/prompts", params={"after": after, "limit": limit}
        )

    async def versions(self, run_id: str) -> tuple[VersionView, ...]:
        return tuple(await self._many(VersionView, f"/v1/runs/{run_id}/versions"))

    async def checkpoints(self, run_id: str) -> tuple[CheckpointView, ...]:
        return tuple(await self._many(CheckpointView, f"/v1/runs/{run_id}/checkpoints"))

    async def evaluations(self, run_id: str) -> tuple[RunEvaluationView, ...]:
        return tuple(await self._many(RunEvaluationView, f"/v1/runs/{run_id}/evaluations"))

    async def workers(self) -> tuple[WorkerView, ...]:
        return tuple(await self._many(WorkerView, "/v1/workers"))

    async def events(
        self, run_id: str, last_event_id: int = 0, on_away: Callable[[], None] | None = None
    ) -> AsyncIterator[EventView]:
        """Events after `last_event_id` as they happen, across restarts of the coordinator; ends with the run.

        Args:
            on_away: called once whenever the coordinator is away for longer than one try.

        Raises:
            TransientError: the coordinator was away for RECONNECT_SECONDS.
        """
        outage = _Outage(self.url, on_away)
        while True:
            try:
                async for event in self._stream(run_id, last_event_id):
                    outage.over()
                    if event is not None:
                        last_event_id = event.id
                        yield event
                if (await self.get(run_id)).state.terminal:
                    return
            except (httpx.TransportError, TransientError, NoServerError) as error:
                outage.goes_on(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _stream(self, run_id: str, last_event_id: int) -> AsyncIterator[EventView | None]:
        """Events; None as soon as the coordinator has answered, which may be long before the next event."""
        headers = {"Last-Event-ID": str(last_event_id)}
        timeout = httpx.Timeout(30.0, read=60.0)  # the server sends a comment every 15 s
        async with self._http.stream("GET", f"/v1/runs/{run_id}/events", headers=headers, timeout=timeout) as response:
            if response.is_error:
                await response.aread()
                raise _fault(response)
            yield None
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    yield EventView.model_validate_json(line.removeprefix("data:"))

    async def _one(self, kind: type[V], method: str, path: str, **options: Any) -> V:
        return kind.model_validate_json((await self._request(method, path, **options)).content)

    async def _many(self, kind: type[V], path: str, **query: int) -> list[V]:
        return [kind.model_validate(entry) for entry in (await self._request("GET", path, params=query)).json()]

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.ConnectError:
            raise NoServerError(
                f"no coordinator answers at {self.url}; start one with `sluice up`, or change --at or SLUICE_API_URL"
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigError(f"--at {self.url}: {error}") from None
        except httpx.TransportError as error:
            raise TransientError(f"{method} {self.url}{path}: {type(error).__name__} {error}".rstrip()) from None
        if response.is_error:
            raise _fault(response)
        return response


def _key_header(key: str | None) -> dict[str, str]:
    """Raises: ConfigError: the key cannot be sent."""
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise ConfigError(
            f"--idempotency-key (Idempotency-Key) = {key!r:.80}: must have 1 to 200 characters, all of "
            "them printable ones of ASCII"
        )
    return {"Idempotency-Key": key} if key else {}


class _Outage:
    """Since when the coordinator has been away, if it is."""

    def __init__(self, url: str, on_away: Callable[[], None] | None) -> None:
        self._url, self._on_away = url, on_away
        self._clock = asyncio.get_running_loop().time
        self._since: float | None = None
        self._said = False

    def over(self) -> None:
        self._since, self._said = None, False

    def goes_on(self, error: Exception) -> None:
        """One more try has failed. Raises: TransientError: they have for RECONNECT_SECONDS."""
        if self._since is None:
            self._since = self._clock()
            return
        if self._clock() - self._since > RECONNECT_SECONDS:
            raise TransientError(
                f"the coordinator at {self._url} was away for {RECONNECT_SECONDS:g} s ({error})"
            ) from None
        if self._on_away is not None and not self._said:
            self._said = True
            self._on_away()


def _fault(response: httpx.Response) -> SluiceError:
    """A problem document as the exception that its status means."""
    try:
        detail = Problem.model_validate_json(response.content).detail
    except ValidationError:
        detail = f"{response.url} answered {response.status_code}: is this a Sluice coordinator?"
    if response.status_code in RETRIED:
        return TransientError(detail)
    return ConfigError(detail) if response.is_client_error else SluiceError(detail)
