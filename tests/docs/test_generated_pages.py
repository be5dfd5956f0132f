"""What the documentation says about fields, variables, metrics and routes is what the code says."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.config import parse_run_spec
from sluice.errors import ConfigError
from tests.docs.pages import ROOT

VALID: dict[str, dict[str, Any]] = {
    "model": {"path": "models/tiny"},
    "data": {"train_files": ["rows.jsonl"], "max_prompt_length": 8},
    "rollout": {"group_size": 4, "max_response_length": 8},
    "trainer": {"total_steps": 2, "prompts_per_step": 4, "max_tokens_per_micro_batch": 64},
}


@pytest.fixture(autouse=True)
def scripts_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_generated_pages_are_what_the_code_says() -> None:
    command = [sys.executable, "scripts/docs.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_page_that_has_drifted_is_named_and_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import docs

    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "configuration.md"
    true_text = page.read_text(encoding="utf-8")
    page.write_text(true_text.replace("`prompts_per_step`", "`batch_of_prompts`"), encoding="utf-8")
    assert docs.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err.startswith("docs/configuration.md: ")
    assert docs.main([], tmp_path) == 0
    assert capsys.readouterr().out == "wrote docs/configuration.md\n"
    assert page.read_text(encoding="utf-8") == true_text


def test_the_run_that_the_rules_are_tried_on_is_valid() -> None:
    assert parse_run_spec(VALID).trainer.prompts_per_step == 4


def test_every_rule_between_fields_is_enforced_and_names_its_field() -> None:
    from documentation.run_file import RULES

    for sentence, faults in RULES:
        fields = copy.deepcopy(VALID)
        for section, values in faults.items():
            fields.setdefault(section, {}).update(values)
        with pytest.raises(ConfigError) as refused:
            parse_run_spec(fields)
        assert sentence.split("`")[1].split(" ")[0] in str(refused.value)
