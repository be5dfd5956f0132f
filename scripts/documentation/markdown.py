"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *escaped)]


def put_between_marks(text: str, mark: str, lines: Sequence[str]) -> str:
    """`text` with `lines` as all that stands between the two comments that name `mark`.

    Raises:
        ValueError: the comments are not there, or more than once.
    """
    begin, end = f"<!-- begin generated {mark} -->", f"<!-- end generated {mark} -->"
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"{begin} and {end} must stand in the page exactly once")
    return pattern.sub(lambda _: "\n".join([begin, "", *lines, "", end]), text)
