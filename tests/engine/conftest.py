"""A real engine process on the tiny model, and transformers to judge its log-probabilities."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.engine_calls import StartedEngine, StartEngine, reset
from tests.engine.judge import Judge

START_SECONDS = 60.0
SGLANG_URL = os.environ.get("SLUICE_SGLANG_URL")


@pytest.fixture(scope="session")
def other_weights(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clearly different weights for the tiny model: a directory of shards, without config and tokenizer."""
    directory = tmp_path_factory.mktemp("weights") / "v1"
    directory.mkdir()
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(tiny_model / "model.safetensors").items()
    }
    names = sorted(tensors)
    for index, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, directory / f"model-0000{index}.safetensors")
    return directory


@pytest.fixture(scope="session")
def judge(tiny_model: Path) -> Judge:
    return Judge(tiny_model, tiny_model)


@pytest.fixture(scope="session")
def other_judge(tiny_model: Path, other_weights: Path) -> Judge:
    return Judge(tiny_model, other_weights)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def start_engine(tiny_model: Path) -> Iterator[StartEngine]:
    """Start an engine process with the given flags; returns a client of it. All end with the session."""
    with ExitStack() as stack:

        def start(*flags: str, model: Path = tiny_model) -> StartedEngine:
            port = free_port()
            command = [sys.executable, "-m", "services.engine", "--model", str(model), "--port", str(port), *flags]
            process = stack.enter_context(subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}))
            stack.callback(process.terminate)
            client = stack.enter_context(StartedEngine(port, process))
            wait_until_ready(client)
            return client

        yield start


def wait_until_ready(client: StartedEngine) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert client.process.poll() is None, f"the engine ended with code {client.process.returncode} while starting"
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"the engine was not ready after {START_SECONDS} s (START_SECONDS)")


@pytest.fixture(scope="session")
def own_engine(start_engine: StartEngine) -> httpx.Client:
    """One engine for all tests that need no special flags."""
    return start_engine()


@pytest.fixture(scope="session", params=["own", *([SGLANG_URL] if SGLANG_URL else [])])
def server(request: pytest.FixtureRequest) -> httpx.Client:
    """What the conformance tests talk to: our engine, and any SGLang server of the tiny model (fp32, on a machine
    that sees the same directories) whose address is in SLUICE_SGLANG_URL."""
    if request.param == "own":
        client: httpx.Client = request.getfixturevalue("own_engine")
        return client
    return httpx.Client(base_url=request.param, timeout=120.0)


@pytest.fixture
def engine(own_engine: httpx.Client, tiny_model: Path) -> httpx.Client:
    """Our engine, going on and with the tiny model's own weights."""
    return reset(own_engine, tiny_model)
