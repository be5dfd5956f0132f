"""The simulated engine: SGLang's HTTP API as the rollout worker uses it, answered after a modelled time, by no model.

    python -m bench.simulated.engine --model models/tiny --port 30000 --latency lognormal:0.1:1.0

Equal prompts with equal seeds get equal answers. Right and wrong answers are made so that groups are kept at a chosen
rate by the real verifier. Weight updates are believed: only the version is noted. `SIMULATED` in /server_info says what
this is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bench.simulated.generation import Generator, Request
from bench.simulated.generation import Response as Planned
from bench.simulated.latency import Latency, parse_latency, sample_seconds
from bench.simulated.responses import Responder, outcomes

CLIENT_CLOSED_REQUEST = 499


class SimulatedEngine:
    """Routes and what they need."""

    def __init__(self, model: Path, latency: Latency, keep_rate: float, pace: float, concurrency: int | None) -> None:
        self._responder = Responder(model)
        self._config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
        self._latency, self._keep_rate, self._pace = latency, keep_rate, pace
        self._generator = Generator(concurrency)

    def app(self) -> Starlette:
        posts = {
            "/generate": self.generate,
            "/pause_generation": self.pause,
            "/continue_generation": self.resume,
            "/abort_request": self.abort,
            "/update_weights_from_disk": self.update_weights,
            "/flush_cache": self.flush,
        }
        gets = {"/model_info": self.model_info, "/server_info": self.server_info, "/health": self.health}
        routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        return Starlette(routes=routes + [Route(path, handler) for path, handler in gets.items()])

    async def generate(self, http: HttpRequest) -> Response:
        """All samples of one prompt, when the longest has had its time; nothing for a client that has gone away."""
        request = self._plan(await http.json())
        work = asyncio.ensure_future(self._generator.generate(request))
        gone = asyncio.ensure_future(http.receive())  # the body is read, so the next message is the disconnection
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            answers = work.result()
            return JSONResponse(answers if len(answers) > 1 else answers[0])
        finally:
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def _plan(self, body: dict[str, Any]) -> Request:
        wish = body["sampling_params"]
        seed, count, most = int(wish["sampling_seed"]), int(wish["n"]), int(wish["max_new_tokens"])
        rights = outcomes(seed, self._keep_rate, count)
        responses = []
        for i, right in enumerate(rights):
            seconds = sample_seconds(self._latency, seed, i)
            tokens = self._responder.tokens(body["input_ids"], right, min(most, max(1, round(seconds * self._pace))))
            responses.append(Planned(tokens[:most], len(tokens) < most, seconds))
        return Request(str(body["rid"]), responses)

    async def pause(self, http: HttpRequest) -> Response:
        self._generator.pause()
        return JSONResponse({"success": True, "message": "paused", "status": "ok"})

    async def resume(self, http: HttpRequest) -> Response:
        self._generator.resume()
        return JSONResponse({"success": True, "message": "continued", "status": "ok"})

    async def abort(self, http: HttpRequest) -> Response:
        body = await http.json()
        self._generator.abort(None if body.get("abort_all") else str(body.get("rid")))
        return Response(status_code=200)

    async def update_weights(self, http: HttpRequest) -> Response:
        """Serve another version from now on. Its folder must be there, nothing of it is read."""
        body = await http.json()
        if not (Path(body["model_path"]) / "manifest.json").is_file():
            return JSONResponse({"success": False, "message": f"{body['model_path']} holds no version"}, 400)
        self._generator.version = str(body["weight_version"])
        return JSONResponse({"success": True, "message": "noted", "num_paused_requests": len(self._generator.running)})

    async def flush(self, http: HttpRequest) -> Response:
        return PlainTextResponse("Cache flushed.\n")

    async def model_info(self, http: HttpRequest) -> Response:
        return JSONResponse({"weight_version": self._generator.version, "is_generation": True})

    async def server_info(self, http: HttpRequest) -> Response:
        return JSONResponse(
            {
                "version": "SIMULATED",
                "vocab_size": self._config["vocab_size"],
                "context_length": self._config["max_position_embeddings"],
                "weight_version": self._generator.version,
                "num_running_reqs": len(self._generator.running),
            }
        )

    async def health(self, http: HttpRequest) -> Response:
        return Response(status_code=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="tokenizer and vocabulary; no weights are read")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", default="constant:0.1", help="constant:S, lognormal:MEDIAN:P99[:CAP], trace:FILE")
    parser.add_argument("--keep-rate", type=float, default=0.5, help="share of groups with unequal outcomes")
    parser.add_argument("--pace", type=float, default=100.0, help="tokens a second of one response")
    parser.add_argument("--concurrency", type=int, default=0, help="prompts generated at a time; 0: all")
    chosen = parser.parse_args()
    engine = SimulatedEngine(
        chosen.model, parse_latency(chosen.latency), chosen.keep_rate, chosen.pace, chosen.concurrency or None
    )
    uvicorn.run(
        engine.app(),
        host=chosen.host,
        port=chosen.port,
        log_level="warning",
        access_log=False,
        backlog=2048,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
