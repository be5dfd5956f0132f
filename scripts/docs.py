"""Write what the documentation says about code from the code itself.

python scripts/docs.py            write docs/configuration.md, docs/openapi.json and the tables of docs/operations.md
                                  and docs/metrics.md
python scripts/docs.py --check    change nothing; fail and name the files that differ
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from documentation.deployment import environment_table, metrics_tables
from documentation.markdown import put_between_marks
from documentation.run_file import configuration_page
from drift import command

from services.coordinator.api.app import create_app

ROOT = Path(__file__).resolve().parent.parent
OPERATIONS, METRICS = Path("docs/operations.md"), Path("docs/metrics.md")


def outputs(root: Path) -> dict[Path, str]:
    """Every generated file and its text, by its path under `root`."""
    operations, metrics = ((root / page).read_text(encoding="utf-8") for page in (OPERATIONS, METRICS))
    return {
        Path("docs/configuration.md"): configuration_page(),
        Path("docs/openapi.json"): openapi_document(),
        OPERATIONS: put_between_marks(operations, "environment", environment_table()),
        METRICS: put_between_marks(metrics, "metrics", metrics_tables()),
    }


def openapi_document() -> str:
    # The document describes routes and models; whoever stands behind them is not asked.
    app = create_app(typing.cast(Any, None))
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    return command(str(__doc__), arguments, root, outputs(root))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
