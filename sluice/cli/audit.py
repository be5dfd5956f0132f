"""`sluice audit`: was everything trained once, and nothing lost?"""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.connection import NatsUrl, RunId, nats_address

Stack = Annotated[str | None, typer.Option("--stack", help="Name of the local stack that holds the run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def audit(run: RunId, nats_url: NatsUrl = None, stack: Stack = None, json: Json = False) -> None:
    """Check a run from its stored records: lost, trained twice, too stale. Ends with 0 only if all three are 0."""
    from sluice.audit import main

    url = nats_address(nats_url, stack)
    raise typer.Exit(main(run, url, json))
