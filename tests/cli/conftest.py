"""The command line against a real API server on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.run_shelf import RunShelf, ThreadServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run files name paths relative to the project, and no address of the user's shell may count."""
    monkeypatch.chdir(ROOT)
    for name in ("SLUICE_API_URL", "SLUICE_API_TOKEN", "SLUICE_NATS_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    with ThreadServer(RunShelf()) as running:
        yield running
