"""Write Grafana's dashboards from the code in scripts/panels/.

python scripts/dashboards.py            write deploy/observability/grafana/dashboards/*.json
python scripts/dashboards.py --check    change nothing; fail and name the files that differ
"""

from __future__ import annotations

import sys
from pathlib import Path

from drift import command
from panels import rollouts, sampling, services, training
from panels.grafana import to_json

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("deploy/observability/grafana/dashboards")
PAGES = (training.PAGE, sampling.PAGE, rollouts.PAGE, services.PAGE)


def outputs() -> dict[Path, str]:
    """Every dashboard's file and its text."""
    return {FOLDER / f"{page.uid}.json": to_json(page) for page in PAGES}


if __name__ == "__main__":
    sys.exit(command(str(__doc__), sys.argv[1:], ROOT, outputs()))
