"""Calls of the engine's HTTP API that several tests make."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PROMPT = [8, 15, 9, 18]  # "3+4=" in the tiny model's vocabulary
LONG = 600
WAIT_SECONDS = 20.0


class StartedEngine(httpx.Client):
    """A client of an engine process that this test session started."""

    def __init__(self, port: int, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(base_url=f"http://127.0.0.1:{port}", timeout=60.0)
        self.process = process


StartEngine = Callable[..., StartedEngine]


def sampling(**changes: Any) -> dict[str, Any]:
    """Sampling parameters with every field sent explicitly, as a client of SGLang should."""
    plain = {"max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "n": 1, "ignore_eos": False}
    return plain | changes


def generate(client: httpx.Client, input_ids: Any = None, **changes: Any) -> Any:
    """The answer of /generate with log-probabilities; `changes` go into sampling_params."""
    body = {"input_ids": PROMPT if input_ids is None else input_ids, "return_logprob": True}
    response = client.post("/generate", json=body | {"sampling_params": sampling(**changes)})
    assert response.status_code == 200, response.text
    return response.json()


def output_logprobs(answer: dict[str, Any]) -> list[float]:
    entries = answer["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in entries] == answer["output_ids"]
    return [entry[0] for entry in entries]


@contextmanager
def long_stream(client: httpx.Client, **more: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """A streamed sample of LONG tokens, begun: its answers so far, one after the other."""
    body = {
        "input_ids": PROMPT,
        "sampling_params": sampling(max_new_tokens=LONG, ignore_eos=True),
        "return_logprob": True,
        "stream": True,
    }
    with client.stream("POST", "/generate", json=body | more) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        answers = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))
        next(answers)
        yield answers


def last(answers: Iterator[dict[str, Any]]) -> dict[str, Any]:
    *_, answer = answers
    return answer


def metric(client: httpx.Client, name: str) -> float:
    """The sum over labels of a metric."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"sglang:{name}{{"))


def reset(client: httpx.Client, tiny_model: Path) -> httpx.Client:
    """An engine that goes on, has nothing to do and serves the tiny model's own weights as v0."""
    client.post("/abort_request", json={"abort_all": True})
    client.post("/continue_generation", json={})
    body = {"model_path": str(tiny_model), "weight_version": "v0"}
    assert client.post("/update_weights_from_disk", json=body).json()["success"]
    return client


def running(engine: httpx.Client) -> int:
    """How many samples our engine decodes now."""
    count: int = engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"]
    return count


def wait_until_running(engine: httpx.Client, count: int) -> None:
    """Return once our engine decodes `count` samples; fails after WAIT_SECONDS."""
    deadline = time.monotonic() + WAIT_SECONDS
    while running(engine) != count:
        assert time.monotonic() < deadline, f"{running(engine)} samples run, expected {count}"
        time.sleep(0.01)
