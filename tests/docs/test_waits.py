"""Every wait that the code names is in the table of waits, and every wait of the table is in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from services.coordinator import parts
from services.coordinator.evaluation import status
from tests.docs.pages import ROOT

NAMES_A_WAIT = {"waiting": 1, "call": 1, "WaitView": 0, "_wait": 0, "WaitTimeoutError": 0}
"""Functions by name, and where they take the wait's name; the trainer's `waiting` takes nothing else."""
ALONE = ("waiting",)


def waits_of_code() -> set[str]:
    """Names in calls, those that the coordinator has in its own tables, and the engine's routes: a wait for each."""
    found = {parts_name for table in (parts.OF_A_WORKER, parts.OF_THE_TRAINER) for parts_name in table}
    found |= set(re.findall(r'"/([a-z_]+)"', (ROOT / "services/rollout/engine.py").read_text(encoding="utf-8")))
    for folder in ("coordinator", "rollout", "trainer", "reward"):
        for file in sorted((ROOT / "services" / folder).rglob("*.py")):
            found |= set(_named_in(file))
    return found | {status.WAIT}


def _named_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (name := _wait_of(node)):
            yield name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in ("_waits_by_state", "_missing"):
            yield from _texts_of(node)


def _wait_of(call: ast.Call) -> str | None:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called not in NAMES_A_WAIT:
        return None
    at = NAMES_A_WAIT[called]
    named = [k.value for k in call.keywords if k.arg in ("name", "wait")]
    candidates = named or call.args[at : at + 1] or (call.args[:1] if called in ALONE else [])
    value = candidates[0] if candidates else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _texts_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Names that a function chooses between: keys of what it returns, or what it returns."""
    for node in ast.walk(function):
        keys = node.keys if isinstance(node, ast.Dict) else [node.value] if isinstance(node, ast.Return) else []
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def waits_of_table() -> dict[str, str]:
    """Deadline by name."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.split("| wait | of | for | deadline |\n| --- | --- | --- | --- |\n")[1].split("\n\n")[0]
    found: dict[str, str] = {}
    for row in table.splitlines():
        names, _, _, deadline = (cell.strip() for cell in row.strip("|").split("|"))
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), deadline)
    return found


def test_the_table_of_waits_has_every_wait_of_the_code_and_no_other() -> None:
    assert waits_of_code() == set(waits_of_table())


def test_every_wait_has_a_deadline_but_that_of_somebody_who_has_nothing_to_do() -> None:
    assert [name for name, deadline in waits_of_table().items() if deadline.startswith("none")] == ["run"]
