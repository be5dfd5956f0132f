"""Files that code writes: the two commands `scripts/docs.py` and `scripts/dashboards.py` differ in what they write."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def command(usage: str, arguments: Sequence[str], root: Path, wanted: Mapping[Path, str]) -> int:
    """Write the files that differ, or with `--check` name them and fail; the exit code.

    Args:
        usage: printed for any other argument; its second paragraph begins with the command itself.
    """
    if list(arguments) not in ([], ["--check"]):
        print(usage, file=sys.stderr)
        return 2
    changed = {path: text for path, text in wanted.items() if not _is(root / path, text)}
    if arguments and changed:
        names, again = ", ".join(map(str, changed)), " ".join(usage.split("\n\n")[1].split()[:2])
        print(f"{names}: not what the code says; run `{again}` and commit the outcome", file=sys.stderr)
        return 1
    for path, text in changed.items():
        (root / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


def _is(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text
