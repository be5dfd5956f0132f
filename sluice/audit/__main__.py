"""`python -m sluice.audit RUN [--nats URL] [--json]`."""

from __future__ import annotations

import argparse
import os
import sys

from sluice.audit.command import main

DEFAULT_URL = "nats://127.0.0.1:4222"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sluice.audit",
        description="Count a run again from what it has stored.",
        epilog="Exit code: 0 clean, 1 an invariant is broken, 2 no such run.",
    )
    parser.add_argument("run", metavar="RUN", help="id of the run")
    parser.add_argument("--nats", metavar="URL", default=os.environ.get("SLUICE_NATS_URL", DEFAULT_URL))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    sys.exit(main(arguments.run, arguments.nats, arguments.json))
