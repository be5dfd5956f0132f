"""`sluice fork`: a new run that goes on from a checkpoint of another one."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.connection import At, RunId, connect, wait_for
from sluice.cli.resolve import put_overrides
from sluice.cli.resuming import told
from sluice.cli.submit import Detach, Key
from sluice.cli.watch import follow_to_end

Step = Annotated[
    int | None,
    typer.Option(min=0, help="Training step of the checkpoint; default: the newest one.", show_default=False),
]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one field; may be repeated.")
]


def fork(
    run: RunId,
    step: Step = None,
    overrides: Overrides = [],  # noqa: B006  # typer reads the default, nobody changes it
    detach: Detach = False,
    idempotency_key: Key = None,
    at: At = None,
) -> None:
    """Go on from a checkpoint as a new run, with changes, and watch it. The run itself is left as it is.

    The new run has the weights, the optimizer, the schedule's position and the place in the data of that checkpoint.
    """

    async def work() -> int:
        async with connect(at) as client:
            forked = await client.fork(run, step, put_overrides({}, overrides), idempotency_key)
            print(told(forked), flush=True)
            return 0 if detach else await follow_to_end(client, forked.id, forked.total_steps)

    raise typer.Exit(wait_for(work()))
