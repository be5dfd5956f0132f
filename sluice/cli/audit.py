"""`sluice audit`: was everything trained once, and nothing lost?"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sluice.cli.connection import RunId
from sluice.environment import check_nats_url
from sluice.errors import ConfigError
from sluice.local.state import find_stack
from sluice.secrets import read_secret, redact_url

NatsUrl = Annotated[
    str | None, typer.Option("--nats-url", envvar="SLUICE_NATS_URL", help="Address of NATS; default: the local stack.")
]
Stack = Annotated[str | None, typer.Option("--stack", help="Name of the local stack that holds the run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def audit(run: RunId, nats_url: NatsUrl = None, stack: Stack = None, json: Json = False) -> None:
    """Check a run from its stored records: lost, trained twice, too stale. Ends with 0 only if all three are 0."""
    from sluice.audit import main

    url = nats_url or read_secret("SLUICE_NATS_URL", os.environ) or find_stack(stack).nats_url
    try:
        check_nats_url(url)
    except ValueError as error:
        raise ConfigError(f"--nats-url (SLUICE_NATS_URL)={redact_url(url)}: {error}") from None
    raise typer.Exit(main(run, url, json))
