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


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from documentation.run_file import RULES  # type: ignore[import-not-found]  # on the path only here

    return RULES


def run_docs(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "scripts" / "docs.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_generated_pages_are_what_the_code_says() -> None:
    checked = run_docs(ROOT, "--check")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_page_that_has_drifted_is_named_and_written_anew(tmp_path: Path) -> None:
    for folder in ("docs", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    page = tmp_path / "docs" / "configuration.md"
    true_text = page.read_text(encoding="utf-8")
    page.write_text(true_text.replace("`prompts_per_step`", "`batch_of_prompts`"), encoding="utf-8")
    checked = run_docs(tmp_path, "--check")
    assert checked.returncode == 1
    assert checked.stderr.startswith("docs/configuration.md: ")
    assert run_docs(tmp_path).stdout == "wrote docs/configuration.md\n"
    assert page.read_text(encoding="utf-8") == true_text


def test_the_run_that_the_rules_are_tried_on_is_valid() -> None:
    assert parse_run_spec(VALID).trainer.prompts_per_step == 4


def test_every_rule_between_fields_is_enforced_and_names_its_field(rules: Any) -> None:
    for sentence, faults in rules:
        fields = copy.deepcopy(VALID)
        for section, values in faults.items():
            fields.setdefault(section, {}).update(values)
        with pytest.raises(ConfigError) as refused:
            parse_run_spec(fields)
        assert sentence.split("`")[1].split(" ")[0] in str(refused.value)
