"""A guard for code that reads what a model wrote: while it runs, no text is executed or evaluated as Python.

Libraries of mathematics have readers that turn strings into code (sympy's `sympify` of a string does). None is called
here on purpose; this makes sure that none is called by accident, in any version of any of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_IMPORTS = "<frozen importlib._bootstrap>"
_WRITE_THEIR_OWN = frozenset({"sympy.polys.monomials"})
"""Modules that run code which they make from a count of variables alone, never from text."""


class EvaluatedError(RuntimeError):
    """Something was about to run as Python while nothing may. Never caught on the way to a verdict: it is an error."""


class _Guard:
    """One a process: audit hooks cannot be taken away again."""

    def __init__(self) -> None:
        self.depth = 0
        self.installed = False
        self.refused = ""

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.depth and event == "exec" and not _allowed(sys._getframe(1)):
            self.refused = f"refused to run {arguments[0]!r:.200} while judging text of a model"
            raise EvaluatedError(self.refused)


_GUARD = _Guard()


@contextmanager
def nothing_evaluated() -> Iterator[None]:
    """Within the block, and in this process, `exec` and `eval` raise; modules may be imported.

    Raises:
        EvaluatedError: at the end of the block, when something tried, also when a library has swallowed the refusal.
    """
    if not _GUARD.installed:
        sys.addaudithook(_GUARD.hook)
        _GUARD.installed = True
    _GUARD.depth += 1
    refused_before, _GUARD.refused = _GUARD.refused, ""
    try:
        yield
    finally:
        _GUARD.depth -= 1
        refused, _GUARD.refused = _GUARD.refused, refused_before
        if refused:
            raise EvaluatedError(refused)


def _allowed(frame: FrameType | None) -> bool:
    if frame is not None and frame.f_globals.get("__name__") in _WRITE_THEIR_OWN:
        return True
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            return True
        frame = frame.f_back
    return False
