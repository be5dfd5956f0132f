"""The simulated engine without its HTTP: requests that take modelled time, a clock that can be paused, one version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from bench.simulated.responses import LOGPROB


@dataclass(frozen=True, slots=True)
class Response:
    """What one sample will be: its tokens, and the seconds that they take together."""

    tokens: Sequence[int]
    stops: bool
    """It ends by itself; otherwise at its length limit."""
    seconds: float


@dataclass(eq=False, slots=True)
class Request:
    """All samples of one prompt; they begin together, and the answer waits for the last."""

    rid: str
    responses: Sequence[Response]
    seconds: float = 0.0
    """How long it has been generating so far, pauses left out."""
    versions: list[tuple[str, float]] = field(default_factory=list)
    """Each version that generated it, with `seconds` when the next one took over."""
    aborted: bool = False
    disturbed: asyncio.Event = field(default_factory=asyncio.Event)
    """Something has changed: look again at the clock, at `aborted`, and at whether the engine is paused."""

    @property
    def needs(self) -> float:
        return max(response.seconds for response in self.responses)


class Generator:
    """Generates requests in the order they come, at most `concurrency` at a time (None: all)."""

    def __init__(self, concurrency: int | None) -> None:
        self.version = "initial"
        self.running: set[Request] = set()
        """With those that wait for room: an abort reaches them when it is their turn."""
        self._room = asyncio.Semaphore(concurrency) if concurrency else nullcontext()
        self._paused = False

    def pause(self) -> None:
        """Stop every request's clock."""
        self._paused = True
        self._disturb()

    def resume(self) -> None:
        self._paused = False
        self._disturb()

    def abort(self, rid: str | None) -> None:
        """End the request of this id, or all."""
        for request in self.running:
            request.aborted |= rid in (None, request.rid)
        self._disturb()

    def _disturb(self) -> None:
        for request in self.running:
            request.disturbed.set()

    async def generate(self, request: Request) -> list[dict[str, Any]]:
        """Take the request's time, then give SGLang's answer for each of its samples."""
        self.running.add(request)
        try:
            async with self._room:
                await self._spend(request)
        finally:
            self.running.discard(request)
        return [_answer(request, i, self.version) for i in range(len(request.responses))]

    async def _spend(self, request: Request) -> None:
        """Let its clock run to the end, but not while the engine is paused; note who generated when."""
        needs = request.needs
        while request.seconds < needs and not request.aborted:
            request.disturbed.clear()
            if self._paused:
                await request.disturbed.wait()
                continue
            version, begin = self.version, time.monotonic()
            alarm = asyncio.get_running_loop().call_later(needs - request.seconds, request.disturbed.set)
            try:
                await request.disturbed.wait()
            finally:
                alarm.cancel()
            request.seconds = min(request.seconds + time.monotonic() - begin, needs)
            request.versions.append((version, request.seconds))


def _answer(request: Request, i: int, version: str) -> dict[str, Any]:
    response = request.responses[i]
    made = len(response.tokens)
    if request.aborted:
        made = min(made, int(made * request.seconds / response.seconds))
    tokens = list(response.tokens[:made])
    return {
        "output_ids": tokens,
        "meta_info": {
            "id": f"{request.rid}_{i}",
            "finish_reason": _finish(request, response),
            "prompt_tokens": 0,
            "completion_tokens": made,
            "weight_version": version,
            "weight_versions": _spans(request, response, made),
            "output_token_logprobs": [[LOGPROB, token, None] for token in tokens],
            "output_token_logprobs_length": made,
            "e2e_latency": request.seconds,
        },
    }


def _finish(request: Request, response: Response) -> dict[str, Any]:
    if request.aborted:
        return {"type": "abort", "message": "Abort in simulation", "status_code": None, "err_type": None}
    if response.stops:
        return {"type": "stop", "matched": response.tokens[-1]}
    return {"type": "length", "length": len(response.tokens)}


def _spans(request: Request, response: Response, made: int) -> list[dict[str, Any]]:
    """Tokens come at an even pace, so the time at which a version took over says with which token it did."""
    whole = len(response.tokens)
    borders = [min(made, round(whole * until / response.seconds)) for _, until in request.versions]
    borders = list(accumulate(borders, max))
    if borders:
        borders[-1] = made
    return [
        {"version": version, "start": start, "end": end}
        for (version, _), start, end in zip(request.versions, [0, *borders], borders, strict=False)
        if end > start
    ]
