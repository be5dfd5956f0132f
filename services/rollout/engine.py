"""Client of SGLang's HTTP API, which the CPU engine speaks too: the base URL is the only switch between them."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from services.rollout.completion import Completion, EngineDownError, EngineRefusedError, read_completions
from services.rollout.run import RunUnfitError
from sluice.errors import ConfigError, WaitTimeoutError
from sluice.types import Prompt

CONTROL_SECONDS = 30.0
"""Time limit of pause, continue, flush, abort and the information routes."""
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine can take; SGLang dies of an id outside the vocabulary, so the worker checks."""

    vocab_size: int
    context_length: int
    deterministic: bool
    """The engine honours seeds, so that n samples of one request would all be the same."""


class Engine:
    """One engine. Control routes take the admin key when there is one; generation takes the API key."""

    def __init__(self, url: str, api_key: str | None = None, admin_api_key: str | None = None) -> None:
        self.url = url
        self._key, self._admin_key = api_key, admin_api_key or api_key
        # A kept connection that the server just closed looks like a dying engine: each request opens its own.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=url, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def generate(self, prompt: Prompt, limits: EngineLimits, seconds: float) -> list[Completion]:
        """`prompt.group_size` completions of one prompt, in order.

        Raises:
            EngineDownError, EngineRefusedError, EngineUnfinishedError, ForeignWeightsError: see their docstrings.
            WaitTimeoutError: it took longer than `seconds`; the request is aborted.
        """
        rid = secrets.token_hex(16)  # of one length: SGLang aborts by prefix
        body = _generate_body(prompt, limits, rid)
        try:
            response = await self._call(
                "/generate", body, key=self._key, seconds=seconds, wait="generate", knob="deadlines.generate_seconds"
            )
        except (asyncio.CancelledError, WaitTimeoutError):
            await self._abort_quietly({"rid": rid, "abort_all": False})
            raise
        _refuse(response)
        return read_completions(_json(response), prompt.group_size)

    async def weight_version(self) -> str:
        """The version the engine says it serves. Answers also while paused, so it is the readiness probe."""
        response = await self._call("/model_info", None, key=self._key, seconds=CONTROL_SECONDS, wait="model_info")
        _refuse(response)
        return str(_json(response).get("weight_version"))

    async def limits(self, model: Path) -> EngineLimits:
        """What the engine says of itself, completed from the model folder's config.json.

        Raises:
            RunUnfitError: neither says how large the vocabulary and the context are.
        """
        told: dict[str, Any] = {}
        for route in ("/server_info", "/model_info"):
            response = await self._call(route, None, key=self._key, seconds=CONTROL_SECONDS, wait=route[1:])
            if response.status_code == 200:
                told.update(_json(response))
        config = _model_config(model)
        vocab_size = told.get("vocab_size") or config.get("vocab_size")
        context = told.get("context_length") or config.get("max_position_embeddings")
        if not isinstance(vocab_size, int) or not isinstance(context, int):
            raise RunUnfitError(
                f"neither the engine at {self.url} nor {model / 'config.json'} gives vocab_size ({vocab_size!r}) and "
                f"context length ({context!r}); knob: model.path"
            )
        return EngineLimits(vocab_size, context, bool(told.get("enable_deterministic_inference")))

    async def pause(self) -> None:
        """Stop sampling; running requests go back to the queue and lose their KV cache, but not their tokens."""
        _refuse(await self._control("/pause_generation", {"mode": "retract"}))

    async def resume(self) -> None:
        """Go on sampling."""
        _refuse(await self._control("/continue_generation", {}))

    async def update_weights(self, folder: Path, version: str, seconds: float) -> bool:
        """Load the weights in `folder` (absolute). False: it refused or failed, and what it holds now is unknown."""
        body = {"model_path": str(folder), "weight_version": version, "flush_cache": True}
        response = await self._call(
            "/update_weights_from_disk",
            body,
            key=self._admin_key,
            seconds=seconds,
            wait="update_weights",
            knob="deadlines.weight_sync_seconds",
        )
        return response.status_code == 200 and bool(_json(response).get("success"))

    async def flush(self) -> bool:
        """Drop cached prefixes of old weights. False: the engine says that it is busy."""
        return (await self._control("/flush_cache", {})).status_code == 200

    async def abort_all(self) -> None:
        """End every request; each comes back unfinished."""
        _refuse(await self._control("/abort_request", {"rid": "", "abort_all": True}))

    async def _abort_quietly(self, body: dict[str, Any]) -> None:
        """Closing the connection aborts too; this only makes it certain, so a failure changes nothing."""
        try:
            await asyncio.shield(self._control("/abort_request", body))
        except (EngineDownError, EngineRefusedError, WaitTimeoutError):
            return

    async def _control(self, route: str, body: dict[str, Any]) -> httpx.Response:
        return await self._call(route, body, key=self._admin_key, seconds=CONTROL_SECONDS, wait=route[1:])

    async def _call(
        self,
        route: str,
        body: dict[str, Any] | None,
        *,
        key: str | None,
        seconds: float,
        wait: str,
        knob: str = "the engine's load",
    ) -> httpx.Response:
        timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        method = "GET" if body is None else "POST"
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.request(method, route, json=body, headers=headers, timeout=timeout)
        except (httpx.ReadTimeout, httpx.WriteTimeout, TimeoutError):
            raise WaitTimeoutError(wait, seconds, knob) from None
        except httpx.TransportError as error:
            raise EngineDownError(f"engine at {self.url} does not answer {route}: {error!r}") from None
        if response.status_code in (401, 403):
            raise ConfigError(
                f"engine at {self.url} refuses our key for {route}; "
                "knobs: SLUICE_ENGINE_API_KEY, SLUICE_ENGINE_ADMIN_API_KEY"
            )
        if response.status_code >= 500:
            raise EngineDownError(
                f"engine at {self.url} answers {route} with {response.status_code}: {_text(response)}"
            )
        return response


def _generate_body(prompt: Prompt, limits: EngineLimits, rid: str) -> dict[str, Any]:
    """Every sampling field is named: servers take missing ones from the model's generation config."""
    wrong = [token for token in prompt.token_ids if not 0 <= token < limits.vocab_size]
    if wrong:
        raise EngineRefusedError(f"prompt has token id {wrong[0]}; the vocabulary has {limits.vocab_size}")
    room = limits.context_length - len(prompt.token_ids) - 1  # some servers count one token more
    if room < 1:
        raise EngineRefusedError(
            f"prompt of {len(prompt.token_ids)} tokens leaves no room in a context of {limits.context_length}"
        )
    sampling: dict[str, Any] = {
        "max_new_tokens": min(prompt.sampling.max_new_tokens, room),
        "temperature": prompt.sampling.temperature,
        "top_p": prompt.sampling.top_p,
        "top_k": prompt.sampling.top_k,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "stop": [],
        "stop_token_ids": list(prompt.sampling.stop_token_ids),
        "ignore_eos": False,
        "n": 1,
    }
    body: dict[str, Any] = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 0, "stream": False}
    if not limits.deterministic:
        sampling |= {"n": prompt.group_size, "sampling_seed": prompt.seed}
        return body | {"rid": rid, "input_ids": list(prompt.token_ids), "sampling_params": sampling}
    copies = range(prompt.group_size)
    return body | {
        "rid": [f"{rid}-{i:05d}" for i in copies],
        "input_ids": [list(prompt.token_ids) for _ in copies],
        "sampling_params": [sampling | {"sampling_seed": prompt.seed + i} for i in copies],
    }


def _model_config(model: Path) -> dict[str, Any]:
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunUnfitError(f"model.path = {str(model)!r}: config.json cannot be read: {error}") from None
    return {**config, **config.get("text_config", {})}


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise EngineRefusedError(f"engine answers no JSON: {_text(response)}") from None


def _text(response: httpx.Response) -> str:
    return response.text[:300].replace("\n", " ")


def _refuse(response: httpx.Response) -> None:
    if response.status_code != 200:
        raise EngineRefusedError(f"engine answers {response.status_code}: {_text(response)}")
