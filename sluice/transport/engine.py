"""The way to an engine: SGLang's HTTP API, which the CPU engine speaks too. What is asked is the caller's business."""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.errors import ConfigError, PermanentError, TransientError, WaitTimeoutError
from sluice.transport.http import HttpAnswer, HttpBrokenError, HttpConnections

CONNECT_SECONDS = 5.0
CONTROL_SECONDS = 30.0
"""Time limit of routes that only ask or switch something: information, pause, continue, flush, abort."""


class EngineDownError(TransientError):
    """The engine died, refused the connection or answered 5xx; counts as an attempt."""


class EngineRefusedError(PermanentError):
    """The engine will not do this request, or answered what cannot be used; counts as an attempt."""


class EngineConnection:
    """One engine's address and keys.

    Args:
        url: e.g. http://host:30000.
        api_key: bearer token of every route, when there is one.
        admin_api_key: bearer token of the routes that control the engine; by default the API key.

    Raises:
        ConfigError: `url` is no http or https address.
    """

    def __init__(self, url: str, api_key: str | None = None, admin_api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._key, self._admin_key = api_key, admin_api_key or api_key
        try:
            self._http = HttpConnections(self.url, CONNECT_SECONDS)
        except ValueError as error:
            raise ConfigError(f"engine {url!r} is no address: {error}") from None

    async def close(self) -> None:
        await self._http.close()

    async def call(
        self,
        route: str,
        body: dict[str, Any] | None = None,
        *,
        seconds: float = CONTROL_SECONDS,
        knob: str = "the engine's load",
        admin: bool = False,
    ) -> HttpAnswer:
        """POST `body` to `route`, or GET it when there is none; any answer below 500 comes back as it is.

        Raises:
            EngineDownError: nobody answers, or with 5xx.
            WaitTimeoutError: it took longer than `seconds`; the wait is named after the route, and names `knob`.
            ConfigError: the engine refuses the key.
        """
        key = self._admin_key if admin else self._key
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.request(route, body, headers)
        except TimeoutError:
            raise WaitTimeoutError(route[1:], seconds, f"{knob} (engine at {self.url})") from None
        except HttpBrokenError as error:
            raise EngineDownError(f"engine at {self.url} does not answer {route}: {error}") from None
        if response.status_code in (401, 403):
            raise ConfigError(
                f"engine at {self.url} refuses our key for {route}; "
                "knobs: SLUICE_ENGINE_API_KEY, SLUICE_ENGINE_ADMIN_API_KEY"
            )
        if response.status_code >= 500:
            raise EngineDownError(f"engine at {self.url} answers {route} with {response.status_code}: {text(response)}")
        return response

    async def ask(
        self,
        route: str,
        body: dict[str, Any] | None = None,
        *,
        seconds: float = CONTROL_SECONDS,
        knob: str = "the engine's load",
    ) -> Any:
        """The JSON that `call` brings with status 200.

        Raises:
            EngineRefusedError: another status, or no JSON.
            EngineDownError, WaitTimeoutError, ConfigError: as `call`.
        """
        return answer(await self.call(route, body, seconds=seconds, knob=knob))


def answer(response: HttpAnswer) -> Any:
    """What a granted request brought. Raises: EngineRefusedError: it was not granted, or the answer is no JSON."""
    granted(response)
    try:
        return response.json()
    except ValueError:
        raise EngineRefusedError(f"engine answers {response.route} with no JSON: {text(response)}") from None


def granted(response: HttpAnswer) -> None:
    """Raises: EngineRefusedError: the status is not 200."""
    if response.status_code != 200:
        raise EngineRefusedError(f"engine answers {response.route} with {response.status_code}: {text(response)}")


def text(response: HttpAnswer) -> str:
    """The beginning of a body, on one line."""
    return response.text[:300].replace("\n", " ")
