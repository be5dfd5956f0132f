"""Which coordinator a command talks to, and the options that say so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Annotated, TypeVar

import typer

from sluice.client import RunsClient
from sluice.errors import ConfigError
from sluice.local.state import find_stack
from sluice.secrets import read_secret

T = TypeVar("T")

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        envvar="SLUICE_API_URL",
        metavar="URL|STACK",
        help="Which coordinator: the address of its API, or the name of a local stack; default: the only one here.",
    ),
]
RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's id, as `sluice runs` lists it.", show_default=False)
]


def connect(at: str | None) -> RunsClient:
    """A client of the API at an address, or of the local stack of that name; the token comes from SLUICE_API_TOKEN, or
    from the file that SLUICE_API_TOKEN_FILE names.

    Raises:
        ConfigError: no address was given and no such stack runs in this folder, or the token's file cannot be read.
    """
    url = at if at and "://" in at else find_stack(at).api_url
    return RunsClient(url, read_secret("SLUICE_API_TOKEN", os.environ))


async def newest_run(client: RunsClient) -> str:
    """Id of the run created last. Raises: ConfigError: there is none."""
    runs = await client.runs()
    if not runs:
        raise ConfigError(f"the coordinator at {client.url} has no runs; submit one with `sluice run RUN_FILE`")
    return max(runs, key=lambda run: run.created_at).id


def wait_for(work: Coroutine[None, None, T]) -> T:
    """Run `work` to its end. A SIGTERM or Ctrl-C ends it in an orderly way, and the process with code 130."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise typer.Exit(130) from None
