"""What an evaluation asks of an engine, in SGLang's HTTP API; the CPU engine speaks it too."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.transport.engine import EngineConnection, EngineDownError, EngineRefusedError

REQUEST_KNOB = "--request-seconds"


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
        self._connection, self._seconds = EngineConnection(url, api_key), seconds
        self.url = self._connection.url

    async def close(self) -> None:
        await self._connection.close()

    async def information(self) -> EngineInfo:
        """Raises: EngineDownError, WaitTimeoutError, EngineRefusedError, ConfigError: as `sample`."""
        model = await self._connection.ask("/model_info")
        server = await self._connection.ask("/server_info")
        context = server.get("context_length")
        return EngineInfo(
            weight_version=str(model.get("weight_version")),
            model_path=str(model.get("model_path")),
            context_length=context if isinstance(context, int) else 0,
        )

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seeds: Sequence[int]) -> list[Response]:
        """A response for each seed, in order.

        Raises:
            EngineDownError: the engine is not there any more, or ended the request by itself.
            WaitTimeoutError: it took longer than `seconds`.
            EngineRefusedError: the engine refuses the request, or its answer lacks what is needed.
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
        answers = await self._connection.ask("/generate", body, seconds=self._seconds, knob=REQUEST_KNOB)
        if not isinstance(answers, list) or len(answers) != len(seeds):
            raise EngineRefusedError(
                f"engine at {self.url} answered {answers!r:.200}; asked for {len(seeds)} responses"
            )
        return [self._read(answer) for answer in answers]

    def _read(self, answer: Any) -> Response:
        try:
            meta = answer["meta_info"]
            reason = meta["finish_reason"]["type"]
            tokens = tuple(int(token) for token in answer["output_ids"])
            response = Response(tokens, str(reason), str(meta["weight_version"]))
        except (KeyError, TypeError, ValueError) as error:
            raise EngineRefusedError(f"answer of the engine at {self.url} lacks what is needed: {error!r}") from None
        if reason not in ("stop", "length"):
            raise EngineDownError(f"engine at {self.url} ended a request: {meta['finish_reason']!r:.200}")
        return response


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
