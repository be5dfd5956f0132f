"""What a worker asks of its engine, in SGLang's HTTP API: the base URL is the only switch to the CPU engine."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.rollout.completion import Completion, read_completions
from services.rollout.run import RunUnfitError
from sluice.errors import WaitTimeoutError
from sluice.transport.engine import EngineConnection, EngineDownError, EngineRefusedError, answer, granted, text
from sluice.transport.http import HttpAnswer
from sluice.types import Prompt


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
        self._connection = EngineConnection(url, api_key, admin_api_key)
        self.url = self._connection.url

    async def close(self) -> None:
        await self._connection.close()

    async def generate(
        self, prompt: Prompt, limits: EngineLimits, seconds: float, seeds: Sequence[int] = ()
    ) -> list[Completion]:
        """`prompt.group_size` completions of one prompt, in order, each by its own seed if `seeds` names them.

        Raises:
            EngineDownError, EngineRefusedError, EngineUnfinishedError, ForeignWeightsError: see their docstrings.
            WaitTimeoutError: it took longer than `seconds`; the request is aborted.
        """
        rid = secrets.token_hex(16)  # of one length: SGLang aborts by prefix
        body = _generate_body(prompt, limits, rid, seeds)
        try:
            answered = await self._connection.ask("/generate", body, seconds=seconds, knob="deadlines.generate_seconds")
        except (asyncio.CancelledError, WaitTimeoutError):
            await self._abort_quietly({"rid": rid, "abort_all": False})
            raise
        return read_completions(answered, prompt.group_size)

    async def weight_version(self) -> str:
        """The version the engine says it serves. Answers also while paused, so it is the readiness probe."""
        return str((await self._connection.ask("/model_info")).get("weight_version"))

    async def limits(self, model: Path) -> EngineLimits:
        """What the engine says of itself, completed from the model folder's config.json.

        Raises:
            RunUnfitError: neither says how large the vocabulary and the context are.
        """
        told: dict[str, Any] = {}
        for route in ("/server_info", "/model_info"):
            response = await self._connection.call(route)
            if response.status_code == 200:
                told.update(answer(response))
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
        granted(await self._control("/pause_generation", {"mode": "retract"}))

    async def resume(self) -> None:
        """Go on sampling."""
        granted(await self._control("/continue_generation", {}))

    async def update_weights(self, folder: Path, version: str, seconds: float) -> str:
        """Load the weights in `folder` (absolute). Returns nothing, or why not: what it holds is unknown then."""
        body = {"model_path": str(folder), "weight_version": version, "flush_cache": True}
        response = await self._connection.call(
            "/update_weights_from_disk", body, seconds=seconds, knob="deadlines.weight_sync_seconds", admin=True
        )
        done = response.status_code == 200 and bool(answer(response).get("success"))
        return "" if done else f"{response.status_code} {text(response)}"

    async def flush(self) -> bool:
        """Drop cached prefixes of old weights. False: the engine says that it is busy."""
        return (await self._control("/flush_cache", {})).status_code == 200

    async def abort_all(self) -> None:
        """End every request; each comes back unfinished."""
        granted(await self._control("/abort_request", {"rid": "", "abort_all": True}))

    async def _abort_quietly(self, body: dict[str, Any]) -> None:
        """Closing the connection aborts too; this only makes it certain, so a failure changes nothing."""
        try:
            await asyncio.shield(self._control("/abort_request", body))
        except (EngineDownError, EngineRefusedError, WaitTimeoutError):
            return

    async def _control(self, route: str, body: dict[str, Any]) -> HttpAnswer:
        return await self._connection.call(route, body, admin=True)


def _generate_body(prompt: Prompt, limits: EngineLimits, rid: str, seeds: Sequence[int]) -> dict[str, Any]:
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
    if not limits.deterministic and not seeds:
        sampling |= {"n": prompt.group_size, "sampling_seed": prompt.seed}
        return body | {"rid": rid, "input_ids": list(prompt.token_ids), "sampling_params": sampling}
    each = list(seeds) or [prompt.seed + i for i in range(prompt.group_size)]
    return body | {
        "rid": [f"{rid}-{i:05d}" for i in range(len(each))],
        "input_ids": [list(prompt.token_ids) for _ in each],
        "sampling_params": [sampling | {"sampling_seed": seed} for seed in each],
    }


def _model_config(model: Path) -> dict[str, Any]:
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunUnfitError(f"model.path = {str(model)!r}: config.json cannot be read: {error}") from None
    return {**config, **config.get("text_config", {})}
