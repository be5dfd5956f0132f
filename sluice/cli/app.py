"""The commands of `sluice`, in the order in which a newcomer needs them."""

from __future__ import annotations

import typer

from sluice.cli import audit, data, delete, demo, export, fork, logs, replay, runs, submit, track, up, verify, watch
from sluice.cli.eval import evaluate

app = typer.Typer(
    help="Asynchronous DAPO training: start the services, submit runs, watch and steer them.",
    epilog="A first look: `make demo`. By hand: `sluice up configs/tiny.toml`, then `sluice run configs/tiny.toml`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(up.up)
app.command()(submit.run)
app.command()(runs.runs)
app.command()(watch.watch)
app.command()(track.track)
app.command()(logs.logs)
app.command()(runs.pause)
app.command()(runs.resume)
app.command()(runs.stop)
app.command()(fork.fork)
app.command()(delete.delete)
app.add_typer(data.app, name="data")
app.command()(audit.audit)
app.command()(replay.replay)
app.command()(export.export)
app.command()(verify.verify)
app.command("eval")(evaluate)
app.command()(demo.demo)
