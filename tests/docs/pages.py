"""The project's pages, and what they name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *(ROOT / "docs").rglob("*.md")]
)


def name_of(page: Path) -> str:
    """Path of a page as test ids show it."""
    return str(page.relative_to(ROOT))


def links(page: Path) -> list[str]:
    """Targets of a page's links and pictures that lie in the project."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [target for target in targets if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Anchors that a page's headings have on GitHub."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shell_lines(page: Path) -> list[str]:
    """Commands in a page's shell blocks, comments cut off and continued lines joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in re.sub(r"(\\|\|)\n\s*", r"\1 ", block).splitlines()]
    return [bare for line in lines if (bare := re.sub(r"(^|\s{2,})#.*", "", line).strip())]


def code_blocks(page: Path, language: str) -> list[str]:
    """Blocks of one language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
