"""`sluice audit`: was everything trained once, and nothing lost?"""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.connection import At, NatsUrl, RunId, nats_address

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def audit(run: RunId, at: At = None, nats_url: NatsUrl = None, json: Json = False) -> None:
    """Check a run from its stored records: lost, trained twice, too stale. Ends with 0 only if all three are 0."""
    from sluice.audit import main

    raise typer.Exit(main(run, nats_address(nats_url, at), json))
