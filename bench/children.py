"""Work in forked children, which take the memory that it needs with them when they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


def in_children(work: Callable[[dict[str, Any]], T], requests: Sequence[dict[str, Any]]) -> list[T]:
    """The answers to the requests, each by a child of its own, all at once. What `work` raises is raised here."""
    with ProcessPoolExecutor(len(requests), get_context("fork")) as children:
        return list(children.map(work, requests))
