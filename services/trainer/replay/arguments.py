"""The options of `python -m services.trainer replay`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; a wrong one ends the process with code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m services.trainer replay",
        description="Train a recorded run's batches again and compare.",
        epilog="Exit code: 0 it agrees, 1 it does not, 2 it cannot be done.",
    )
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--from", dest="start", metavar="STEP|FOLDER", help="start there; default: as early as possible"
    )
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of the loss and the other metrics of a step")
    parser.add_argument("--weights-tolerance", type=float, default=1e-6, help="relative, over all weights of a version")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)
