"""Write Grafana's dashboards from the code in scripts/panels/.

python scripts/dashboards.py            write deploy/observability/grafana/dashboards/*.json
python scripts/dashboards.py --check    change nothing; fail and name the files that differ
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from panels import rollouts, sampling, services, training
from panels.grafana import to_json

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("deploy/observability/grafana/dashboards")
PAGES = (training.PAGE, sampling.PAGE, rollouts.PAGE, services.PAGE)


def drift(root: Path) -> dict[Path, str]:
    """The dashboards under `root` that are not what the code says, with the text that they should have."""
    wanted = {FOLDER / f"{page.uid}.json": to_json(page) for page in PAGES}
    return {path: text for path, text in wanted.items() if not _is(root / path, text)}


def _is(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    if list(arguments) not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    changed = drift(root)
    if arguments and changed:
        names = ", ".join(map(str, changed))
        print(f"{names}: not what scripts/panels/ says; run `python scripts/dashboards.py` and commit", file=sys.stderr)
        return 1
    for path, text in changed.items():
        (root / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
