"""One stack for all tests that let it live; every test has runs of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.local_stack import LocalStack, local_stack


@pytest.fixture(scope="package")
def stack(tiny_model: object) -> Iterator[LocalStack]:
    with local_stack("e2e") as running:
        yield running
