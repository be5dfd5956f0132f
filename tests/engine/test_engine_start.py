"""How the engine starts and ends."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from services.engine.__main__ import build_engine, main
from services.engine.config import EngineConfig, read_config
from services.engine.loop import EngineLoop
from services.engine.request import Sample, SamplingParams
from sluice.errors import ConfigError
from tests.engine.engine_calls import PROMPT, StartEngine, sampling, wait_until_running


def test_flags_come_before_the_environment_and_the_environment_before_defaults(tmp_path: Path) -> None:
    environment = {"ENGINE_MODEL": str(tmp_path), "ENGINE_PORT": "4000", "ENGINE_THREADS": "2"}
    config = read_config(["--port", "5000"], environment)
    assert (config.model, config.port, config.threads, config.dtype) == (tmp_path, 5000, 2, "float32")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--model"),
        (["--model", "m", "--port", "99999"], "--port"),
        (["--model", "m", "--dtype", "int8"], "--dtype"),
    ],
)
def test_a_setting_at_fault_is_named_with_its_flag_and_its_variable(arguments: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{named} \(ENGINE_{named[2:].upper()}\)=.*: (is|must be) "):
        read_config(arguments, {})


def test_a_model_of_another_kind_is_a_start_error_that_names_what_is_supported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    command = [sys.executable, "-m", "services.engine", "--model", str(tmp_path), "--port", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "model_type=mamba" in run.stderr
    assert "llama, qwen2" in run.stderr


@pytest.mark.parametrize(
    "fault",
    [
        ("config.json", "{", "cannot be read as JSON"),
        ("config.json", '{"model_type": "llama"}', "has no hidden_size"),
        ("config.json", {"num_attention_heads": "x"}, "num_attention_heads='x'"),
        ("config.json", {"rms_norm_eps": None}, "rms_norm_eps=None"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id='x'"),
        ("model.safetensors.index.json", "[]", "names no shards"),
        ("model.safetensors", "", "cannot be read as safetensors"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_code_2(
    fault: tuple[str, str | dict[str, object], str],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, text, named = fault
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    whole = text if isinstance(text, str) else json.dumps(json.loads((folder / file).read_text()) | text)
    (folder / file).write_text(whole)
    monkeypatch.setattr(sys, "argv", ["engine", "--model", str(folder), "--port", "1"])
    assert main() == 2
    message = capsys.readouterr().err
    assert message.startswith("sluice-engine: --model") and named in message and message.count("\n") == 1


def test_a_port_in_use_is_one_line_that_names_the_flag_and_exit_code_2(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "services.engine", "--model", str(tiny_model), "--port", str(port)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    named = f"sluice-engine: --port (ENGINE_PORT)={port} of --host (ENGINE_HOST)=127.0.0.1: Address already in use"
    assert run.stderr.startswith(named)
    assert run.stderr.count("\n") == 1


def test_a_terminated_engine_answers_its_requests_with_what_they_have(start_engine: StartEngine) -> None:
    client = start_engine()
    body = {"input_ids": PROMPT, "sampling_params": sampling(n=16, max_new_tokens=2000, ignore_eos=True)}
    with ThreadPoolExecutor() as pool:
        pending = pool.submit(client.post, "/generate", json=body)
        wait_until_running(client, 16)
        client.process.send_signal(signal.SIGTERM)
        answers = pending.result().json()
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} == {"abort"}
    assert client.process.wait(timeout=10) in (0, -signal.SIGTERM)
    with pytest.raises(httpx.TransportError):
        client.get("/health")


def test_a_failed_step_ends_the_loop_and_names_its_failure(tiny_model: Path) -> None:
    engine = build_engine(EngineConfig(model=tiny_model))
    loop = EngineLoop(engine, publish=lambda samples: None)
    whole = SamplingParams(8, 1.0, 1.0, -1, 0.0, frozenset(), ignore_eos=True)
    # Past the checks of the HTTP edge: a token that the embedding does not have.
    loop.submit([Sample("s", "r", (10_000,), whole, seed=0)])
    with pytest.raises(IndexError):
        loop.run()
    assert isinstance(loop.failure, IndexError)
