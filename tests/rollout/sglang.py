"""A small HTTP server that answers in the shapes recorded from SGLang 0.5.23, its faults included.

It computes nothing: it is there to show that the worker's client reads what the real server sends.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Answer = tuple[int, Any]


def sample(tokens: list[int], versions: list[tuple[str, int, int]], reason: Body, **changes: Any) -> Body:
    """One element of the answer to /generate with --skip-tokenizer-init."""
    meta = {
        "id": "5b0b3c1f0b5e4b6e8f7d",
        "finish_reason": reason,
        "prompt_tokens": 4,
        "weight_version": versions[-1][0] if versions else "v0.1",
        "weight_versions": [{"version": v, "start": start, "end": end} for v, start, end in versions],
        "num_retractions": 0,
        "total_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-0.5 - 0.01 * i, token, None] for i, token in enumerate(tokens)],
        "output_token_logprobs_length": len(tokens),
        "reasoning_tokens": 0,
        "completion_tokens": len(tokens),
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": 0.25,
        "first_token_latency": 0.05,
        "queue_time": 0.001,
        "decode_throughput": 30.5,
    }
    return {"output_ids": tokens, "meta_info": meta | changes}


def stopped(tokens: list[int], version: str = "v0.1") -> Body:
    """A finished sample; the matched stop token is in output_ids."""
    return sample(tokens, [(version, 0, len(tokens))], {"type": "stop", "matched": tokens[-1]})


class SglangServer:
    """Generation is a function given by the test; everything else behaves as measured."""

    def __init__(self, api_key: str | None = None, admin_api_key: str | None = None, port: int = 0) -> None:
        self.api_key, self.admin_api_key = api_key, admin_api_key
        self.weight_version = "default"
        self.requests: list[tuple[str, Body]] = []
        self.generate: Callable[[Body], Answer | None] = lambda body: (
            200,
            [stopped([7, 3], self.weight_version) for _ in range(body["sampling_params"]["n"])],
        )
        """None cuts the connection, as a scheduler that dies does."""
        self.update: Callable[[Body], Answer] = self.apply_update
        self.flush_status = 200
        self.server_info: Body = {"version": "0.5.23", "internal_states": [{}]}
        self.in_flight = 0
        self._running = threading.Event()
        self._running.set()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"played": self}))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._running.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def bodies(self, route: str) -> list[Body]:
        return [body for sent, body in self.requests if sent == route]

    def key_of(self, route: str) -> str | None:
        """With both keys set, control routes take the admin key only, and the others the API key only."""
        if route in ("/generate", "/model_info", "/server_info"):
            return self.api_key
        return self.admin_api_key or self.api_key

    def answer(self, route: str, body: Body) -> Answer | None:
        """None: the connection is cut."""
        return getattr(self, f"_{route[1:]}", self._unknown)(body)

    def _unknown(self, body: Body) -> Answer:
        return 404, {"detail": "Not Found"}

    def _pause_generation(self, body: Body) -> Answer:
        self._running.clear()
        return 200, {"status": "ok", "message": "Generation paused successfully."}

    def _continue_generation(self, body: Body) -> Answer:
        self._running.set()
        return 200, {"status": "ok", "message": "Generation continued successfully."}

    def _model_info(self, body: Body) -> Answer:
        return 200, {"model_path": "/models/m", "weight_version": self.weight_version, "is_generation": True}

    def _server_info(self, body: Body) -> Answer:
        return 200, self.server_info

    def _update_weights_from_disk(self, body: Body) -> Answer:
        return self.update(body)

    def _flush_cache(self, body: Body) -> Answer:
        return self.flush_status, "Cache flushed." if self.flush_status == 200 else "Flush cache failed."

    def _abort_request(self, body: Body) -> Answer:
        return 200, ""

    def _health(self, body: Body) -> Answer:
        return (200, "") if self._running.is_set() else (503, "")

    def _generate(self, body: Body) -> Answer | None:
        self.in_flight += 1
        try:
            self._running.wait(30)  # while paused, requests wait: no 503
            return self.generate(body)
        finally:
            self.in_flight -= 1

    def apply_update(self, body: Body) -> Answer:
        self.weight_version = body["weight_version"]
        return 200, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    def update_but_say_no(self, body: Body) -> Answer:
        """Measured: an update that had to wait for a request answers 400, though the weights were replaced."""
        self.apply_update(body)
        return 400, {"success": False, "message": "Failed to update weights.", "num_paused_requests": 0}

    def refuse_update(self, body: Body) -> Answer:
        return 400, {"success": False, "message": "Failed to get weights iterator.", "num_paused_requests": 0}


class _Handler(BaseHTTPRequestHandler):
    played: SglangServer

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _serve(self, body: Body) -> None:
        self.played.requests.append((self.path, body))
        key = self.played.key_of(self.path)
        if key is not None and self.headers["Authorization"] != f"Bearer {key}":
            self._send(401, {"error": "Unauthorized"})
            return
        answer = self.played.answer(self.path, body)
        if answer is None:
            self.close_connection = True
            return
        self._send(*answer)

    def _send(self, status: int, content: Any) -> None:
        raw = b"" if content == "" else json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        except OSError:
            return  # the client has gone

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `requests`."""


def slowly(answer: Callable[[Body], Answer | None], seconds: float) -> Callable[[Body], Answer | None]:
    def wait(body: Body) -> Answer | None:
        time.sleep(seconds)
        return answer(body)

    return wait


if __name__ == "__main__":
    SglangServer(port=int(sys.argv[1]))
