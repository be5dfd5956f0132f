"""One short run for all that look at it; it is paused while nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observability.short_run import ShortRun, short_run

__all__ = ["ShortRun"]


@pytest.fixture(scope="session", name="short_run")
def _short_run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShortRun]:
    with short_run(tmp_path_factory.mktemp("stack")) as run:
        yield run
