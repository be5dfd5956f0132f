"""What an evaluation asks of an engine, in SGLang's HTTP API; the CPU engine speaks it too."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from sluice.errors import ConfigError, PermanentError, TransientError, WaitTimeoutError

CONNECT_SECONDS = 5.0
INFORMATION_SECONDS = 30.0


class EngineLostError(TransientError):
    """The engine died, refused the connection or answered 5xx."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are sampled; the same for all of an evaluation."""

    temperature: float
    top_p: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """Tokens of one response, why it ended (`stop` or `length`), and the weights it came from."""

    token_ids: tuple[int, ...]
    finish_reason: str
    weight_version: str


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself; 0 for a context length it does not say."""

    weight_version: str
    model_path: str
    context_length: int


class EvaluationEngine:
    """One engine.

    Args:
        url: its address, e.g. http://host:30000.
        api_key: sent as a bearer token when there is one.
        seconds: longest time for one request.
    """

    def __init__(self, url: str, api_key: str | None, seconds: float) -> None:
        self.url, self._seconds = url.rstrip("/"), seconds
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A kept connection that the server just closed looks like a dying engine: each request opens its own.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=self.url, limits=limits, headers=headers, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def information(self) -> EngineInfo:
        """Raises: EngineLostError, WaitTimeoutError, PermanentError, ConfigError: as `sample`."""
        model = await self._call("GET", "/model_info", None, INFORMATION_SECONDS)
        server = await self._call("GET", "/server_info", None, INFORMATION_SECONDS)
        context = server.get("context_length")
        return EngineInfo(
            weight_version=str(model.get("weight_version")),
            model_path=str(model.get("model_path")),
            context_length=context if isinstance(context, int) else 0,
        )

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seeds: Sequence[int]) -> list[Response]:
        """A response for each seed, in order.

        Raises:
            EngineLostError: the engine is not there any more, or ended the request by itself.
            WaitTimeoutError: it took longer than `seconds`.
            PermanentError: the engine refuses the request, or its answer lacks what is needed.
            ConfigError: the address or the key is wrong.
        """
        stem = secrets.token_hex(16)  # of one length: SGLang aborts by prefix
        body = {
            "rid": [f"{stem}-{i:05d}" for i in range(len(seeds))],
            "input_ids": [list(prompt) for _ in seeds],
            "sampling_params": [_parameters(sampling) | {"sampling_seed": seed} for seed in seeds],
            "return_logprob": False,
            "stream": False,
        }
        answers = await self._call("POST", "/generate", body, self._seconds)
        if not isinstance(answers, list) or len(answers) != len(seeds):
            raise PermanentError(f"engine at {self.url} answered {answers!r:.200}; asked for {len(seeds)} responses")
        return [self._read(answer) for answer in answers]

    def _read(self, answer: Any) -> Response:
        try:
            meta = answer["meta_info"]
            reason = meta["finish_reason"]["type"]
            tokens = tuple(int(token) for token in answer["output_ids"])
            response = Response(tokens, str(reason), str(meta["weight_version"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PermanentError(f"answer of the engine at {self.url} lacks what is needed: {error!r}") from None
        if reason not in ("stop", "length"):
            raise EngineLostError(f"engine at {self.url} ended a request: {meta['finish_reason']!r:.200}")
        return response

    async def _call(self, method: str, route: str, body: dict[str, Any] | None, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
                response = await self._client.request(method, route, json=body, timeout=timeout)
        except (httpx.ReadTimeout, httpx.WriteTimeout, TimeoutError):
            raise WaitTimeoutError(f"{route[1:]} at {self.url}", seconds, "--request-seconds") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigError(f"--engine {self.url}: {error}") from None
        except httpx.TransportError as error:
            raise EngineLostError(f"engine at {self.url} does not answer {route}: {error!r}") from None
        if response.status_code in (401, 403):
            raise ConfigError(f"--engine {self.url}: refuses our key; knob: SLUICE_ENGINE_API_KEY")
        text = f"engine at {self.url} answers {route} with {response.status_code}: {response.text[:300]!r}"
        if response.status_code >= 500:
            raise EngineLostError(text)
        if response.status_code != 200:
            raise PermanentError(text)
        try:
            return response.json()
        except ValueError:
            raise PermanentError(text) from None


def _parameters(sampling: Sampling) -> dict[str, Any]:
    """Every field is named: servers take missing ones from the model's generation config."""
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "stop": [],
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": False,
        "n": 1,
    }
