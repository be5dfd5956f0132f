"""Links lead somewhere, commands and fields exist, and the words for states, reasons and waits are the code's."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sluice.cli.app import app
from sluice.config import RunSpec
from sluice.local.services import EXIT_CONFIGURATION, EXIT_FENCED
from sluice.types import DropReason, RunState, ScoreItem
from sluice.wire import subjects
from tests.docs.pages import PAGES, ROOT, anchors, code_blocks, links, name_of, shell_lines

DOCS = ROOT / "docs"
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_options_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for line in shell_lines(page):
        words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        match words:
            case ["make", target]:
                assert target in targets, line
            case ["sluice", name, *rest]:
                options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
                assert {word for word in rest if word.startswith("--")} <= options, line
            case ["python", "-m", module, *_] if module.startswith(("services.", "sluice.")):
                assert (ROOT / module.replace(".", "/") / "__main__.py").is_file(), line


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in COMMANDS)


def test_the_walk_has_seven_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\d\. \[([^\]]+)\]\(([^)]+)\)", text, re.MULTILINE)
    assert [name for name, _ in steps] == [target for _, target in steps]
    assert len(steps) == 7


def test_every_field_that_a_page_names_is_a_field_of_the_run_file() -> None:
    sections = {name: field.annotation for name, field in RunSpec.model_fields.items() if name != "name"}
    known = {f"{name}.{key}" for name, section in sections.items() for key in getattr(section, "model_fields", {})}
    page = DOCS / "migrating.md"
    ours = [line.split(" | ", 1)[1] for line in page.read_text(encoding="utf-8").splitlines() if " | " in line]
    named = {name for cell in ours for name in re.findall(r"`([a-z]+\.[a-z_]+)(?: = [^`]+)?`", cell)}
    for other in (DOCS / "architecture.md", DOCS / "operations.md", DOCS / "verifiers.md"):
        found = re.findall(r"`([a-z]+\.[a-z_]+)(?: = [^`]+)?`", other.read_text(encoding="utf-8"))
        named |= {name for name in found if name.split(".")[0] in sections}
    assert len(named) > 40
    assert named - known - {"reward_model.ground_truth"} == set()


def test_the_words_for_states_reasons_and_streams_are_the_codes() -> None:
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8")
    architecture = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert all(f"| `{state}` |" in glossary for state in RunState)
    reasons = first_cells(architecture, "| reason | means |")
    assert sorted(reasons) == sorted(DropReason)
    streams = (subjects.LEDGER, subjects.TRAINER, subjects.PROMPTS, subjects.ROLLOUTS, subjects.GROUPS, subjects.EVENTS)
    assert all(f"| {stream} |" in architecture for stream in streams)


def first_cells(page: str, head: str) -> list[str]:
    """What stands between backticks in the first column of the table with this head."""
    table = page.split(head)[1].split("\n\n", maxsplit=1)[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_exit_codes_are_those_that_supervisor_and_trainer_use() -> None:
    from services.trainer.process import EXIT_CONFIG, EXIT_FAILED, EXIT_RUN_FAILED
    from services.trainer.process import EXIT_FENCED as TRAINER_FENCED

    table = OPERATIONS.split("| code | from | means |")[1].split("\n\n")[0]
    codes = {int(line.split("|")[1]) for line in table.splitlines() if re.match(r"\| \d", line)}
    assert {0, EXIT_FAILED, EXIT_CONFIG, TRAINER_FENCED, EXIT_RUN_FAILED, 130} == codes
    assert (EXIT_CONFIG, TRAINER_FENCED) == (EXIT_CONFIGURATION, EXIT_FENCED)


def test_the_verifier_in_the_guide_does_what_the_guide_says() -> None:
    from services.reward.verifiers.outcome import to_outcome

    code = next(block for block in code_blocks(DOCS / "verifiers.md", "python") if "def starts_well" in block)
    names: dict[str, object] = {}
    exec(code, names)
    judge = names["starts_well"]
    assert callable(judge)
    outcome = to_outcome(judge(ScoreItem("1", "starts_well", "6*7=", " 42!", "42", "{}", 2)))
    assert (outcome.score, outcome.acc, outcome.extracted) == (1.0, 1.0, " 42!")


def test_every_decision_is_in_the_index_and_on_one_page_of_four_parts() -> None:
    folder = DOCS / "adr"
    pages = sorted(folder.glob("0*.md"))
    assert links(folder / "README.md") == [page.name for page in pages]
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Choice", "Rejected", "Consequences"]
        assert text.startswith(f"# {page.name[:4]}: ")
        assert len(text.splitlines()) <= 60


def test_the_changelog_has_the_version_of_the_distribution() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released[0] == version
    assert json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))["info"]["version"] == version
