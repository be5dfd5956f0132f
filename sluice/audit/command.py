"""The command: audit, print, exit code."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console

from sluice.audit.recount import audit
from sluice.audit.report import print_json, print_report
from sluice.errors import ConfigError
from sluice.telemetry import configure_logging


def main(run_id: str, nats_url: str, as_json: bool = False) -> int:
    """Audit `run_id` on the server at `nats_url` and print the report.

    Returns the exit code: 0 when every invariant holds, 1 when one is broken, 2 when there is no server or no such run.
    """
    configure_logging("warning")  # to standard error: standard output is the report
    try:
        report = asyncio.run(audit(nats_url, run_id))
    except ConfigError as error:
        print(f"sluice audit: {error}", file=sys.stderr)
        return 2
    if as_json:
        print_json(report)
    else:
        print_report(report, Console())
    return 0 if report.clean else 1
