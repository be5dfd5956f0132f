"""Starting the engine with settings or models it cannot use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.engine.config import read_config


def test_flags_come_before_the_environment_and_the_environment_before_defaults(tmp_path: Path) -> None:
    environment = {"ENGINE_MODEL": str(tmp_path), "ENGINE_PORT": "4000", "ENGINE_THREADS": "2"}
    config = read_config(["--port", "5000"], environment)
    assert (config.model, config.port, config.threads, config.dtype) == (tmp_path, 5000, 2, "float32")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [([], "--model"), (["--model", "m", "--port", "99999"], "--port"), (["--model", "m", "--dtype", "int8"], "dtype")],
)
def test_a_setting_at_fault_is_named_in_one_line_and_the_exit_code_is_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        read_config(arguments, {})
    message = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert named in message
    assert message.count("\n") == 1


def test_a_model_of_another_kind_is_a_start_error_that_names_what_is_supported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    command = [sys.executable, "-m", "services.engine", "--model", str(tmp_path), "--port", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "model_type=mamba" in run.stderr
    assert "llama, qwen2" in run.stderr
