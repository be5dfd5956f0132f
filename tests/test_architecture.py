"""The rules that keep the code livable: who may import whom, what stays out of which process, how long things get."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("services", "sluice")
    for path in (ROOT / folder).rglob("*.py")
    if "wire/v1" not in path.as_posix()
)
HEAVY = ("torch", "transformers", "deepspeed", "sglang")
LIGHT_PROCESSES = (
    "services.coordinator.__main__",
    "services.reward.__main__",
    "services.rollout.__main__",
    "sluice.cli",
    "sluice.audit",
)


def test_import_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0


@pytest.mark.parametrize("module", LIGHT_PROCESSES)
def test_a_light_process_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == "[]"


def test_no_function_is_longer_than_sixty_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


@pytest.mark.parametrize("service", ["coordinator", "engine", "reward", "rollout", "trainer"])
def test_every_service_has_the_same_skeleton_and_a_readme_of_a_page(service: str) -> None:
    folder = ROOT / "services" / service
    for name in ("__main__.py", "loop.py", "config.py", "metrics.py"):
        assert (folder / name).is_file(), f"services/{service}/{name}"
    assert len((folder / "README.md").read_text(encoding="utf-8").splitlines()) < 40
