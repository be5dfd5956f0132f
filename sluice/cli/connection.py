"""Which coordinator a command talks to, and the options that say so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Annotated, TypeVar

import typer

from sluice.client import RunsClient
from sluice.environment import check_nats_url
from sluice.errors import ConfigError
from sluice.local.state import StackState, find_stack, running_stacks
from sluice.secrets import read_secret, redact_url

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
NatsUrl = Annotated[
    str | None,
    typer.Option("--nats-url", envvar="SLUICE_NATS_URL", help="Address of NATS; default: that of the stack of --at."),
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


def nats_address(given: str | None, at: str | None) -> str:
    """Address of NATS: as given, of SLUICE_NATS_URL or the file that SLUICE_NATS_URL_FILE names, or of a local stack.

    Args:
        at: which local stack, by its name or the address of its API; None: the only one in this folder.

    Raises:
        ConfigError: it is no address, or no such stack runs in this folder.
    """
    url = given or read_secret("SLUICE_NATS_URL", os.environ) or _local_stack(at).nats_url
    try:
        check_nats_url(url)
    except ValueError as error:
        raise ConfigError(f"--nats-url (SLUICE_NATS_URL)={redact_url(url)}: {error}") from None
    return url


def _local_stack(at: str | None) -> StackState:
    if at is None or "://" not in at:
        return find_stack(at)
    for stack in running_stacks():
        if stack.api_url == at.rstrip("/"):
            return stack
    raise ConfigError(
        f"--at (SLUICE_API_URL) = {redact_url(at)}: no stack of this folder has its API there, and no API tells where "
        "its NATS is; give --nats-url (SLUICE_NATS_URL) too"
    )


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
