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
from pathlib import Path
from typing import Any

from bench.simulated.generation import Generator, Request
from bench.simulated.generation import Response as Planned
from bench.simulated.latency import Latency, parse_latency, sample_seconds
from bench.simulated.responses import Responder, outcomes
from bench.simulated.server import Reply, Routes, as_json, serve


class SimulatedEngine:
    """Routes and what they need."""

    def __init__(self, model: Path, latency: Latency, keep_rate: float, pace: float, concurrency: int | None) -> None:
        self._responder = Responder(model)
        self._config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
        self._latency, self._keep_rate, self._pace = latency, keep_rate, pace
        self._generator = Generator(concurrency)

    def routes(self) -> Routes:
        return {
            "POST /generate": self.generate,
            "POST /pause_generation": self.pause,
            "POST /continue_generation": self.resume,
            "POST /abort_request": self.abort,
            "POST /update_weights_from_disk": self.update_weights,
            "POST /flush_cache": self.flush,
            "GET /model_info": self.model_info,
            "GET /server_info": self.server_info,
            "GET /health": self.health,
        }

    async def generate(self, body: dict[str, Any]) -> Reply:
        """All samples of one prompt, when the longest has had its time."""
        answers = await self._generator.generate(self._plan(body))
        return as_json(answers if len(answers) > 1 else answers[0])

    def _plan(self, body: dict[str, Any]) -> Request:
        wish = body["sampling_params"]
        seed, count, most = int(wish["sampling_seed"]), int(wish["n"]), int(wish["max_new_tokens"])
        wrong_and_right = self._responder.answers(tuple(body["input_ids"]))
        responses = []
        for i, right in enumerate(outcomes(seed, self._keep_rate, count)):
            seconds = sample_seconds(self._latency, seed, i)
            length = min(most, max(1, round(seconds * self._pace)))
            tokens = self._responder.padded(wrong_and_right[right], length)
            responses.append(Planned(tokens[:most], len(tokens) < most, seconds))
        return Request(str(body["rid"]), responses)

    async def pause(self, body: object) -> Reply:
        self._generator.pause()
        return as_json({"success": True, "message": "paused", "status": "ok"})

    async def resume(self, body: object) -> Reply:
        self._generator.resume()
        return as_json({"success": True, "message": "continued", "status": "ok"})

    async def abort(self, body: dict[str, Any]) -> Reply:
        self._generator.abort(None if body.get("abort_all") else str(body.get("rid")))
        return Reply()

    async def update_weights(self, body: dict[str, Any]) -> Reply:
        """Serve another version from now on. Its folder must be there, nothing of it is read."""
        if not (Path(body["model_path"]) / "manifest.json").is_file():
            return as_json({"success": False, "message": f"{body['model_path']} holds no version"}, 400)
        self._generator.version = str(body["weight_version"])
        return as_json({"success": True, "message": "noted", "num_paused_requests": len(self._generator.running)})

    async def flush(self, body: object) -> Reply:
        return Reply(b"Cache flushed.\n", kind="text/plain")

    async def model_info(self, body: object) -> Reply:
        return as_json({"weight_version": self._generator.version, "is_generation": True})

    async def server_info(self, body: object) -> Reply:
        return as_json(
            {
                "version": "SIMULATED",
                "vocab_size": self._config["vocab_size"],
                "context_length": self._config["max_position_embeddings"],
                "weight_version": self._generator.version,
                "num_running_reqs": len(self._generator.running),
            }
        )

    async def health(self, body: object) -> Reply:
        return Reply()


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
    asyncio.run(serve(engine.routes(), chosen.host, chosen.port))


if __name__ == "__main__":
    main()
