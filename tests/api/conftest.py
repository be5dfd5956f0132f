"""The API over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sluice.config import RunSpec, load_run_spec
from tests.api.run_shelf import RunShelf, serving

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def spec() -> RunSpec:
    return load_run_spec(CONFIGS / "tiny.toml")


@pytest.fixture
def shelf() -> RunShelf:
    return RunShelf()


@pytest.fixture
async def url(shelf: RunShelf) -> AsyncIterator[str]:
    async with serving(shelf) as address:
        yield address


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield client
