"""`sluice data`: what a run file would train on, before anything is started."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.connection import At, wait_for
from sluice.cli.prompt_screen import show_prompts
from sluice.cli.resolve import resolve
from sluice.cli.submit import Overrides, RunFile
from sluice.cli.truths import refuse_unusable_truths
from sluice.config import RunSpec
from sluice.errors import ConfigError

if TYPE_CHECKING:  # at run time only when needed: it brings pyarrow and the tokenizers
    from sluice.data import PromptTable, TableCounts

BINS = 16
BAR = 40
QUANTILES = (0.5, 0.9, 0.99, 1.0)

Rows = Annotated[int, typer.Option("--rows", min=1, help="How many prompts, in the order in which they are issued.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for prompts.parquet and manifest.json.", show_default=False)]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the lengths into this PNG file too.")]
MaybeRunFile = Annotated[Path | None, typer.Argument(metavar="RUN_FILE", help="The run file.", show_default=False)]
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Show what this run's prompts have shown.")]
AnyTruth = Annotated[bool, typer.Option("--any-truth", help="Do not ask the verifiers about the ground truths.")]

app = typer.Typer(help="Look at training data, count it, and prepare it once for many runs.", no_args_is_help=True)


@app.command()
def inspect(file: RunFile, overrides: Overrides = [], rows: Rows = 2) -> None:  # noqa: B006  # typer reads the default
    """Show the first prompts of a run as the model reads them, with ground truth, data source and extra info."""
    table = _load(resolve(file, overrides))
    for n in range(min(rows, len(table))):
        epoch, index = table.draw(n)
        row = table.row(index)
        print(f"--- issue {n}: row {index}, epoch {epoch}, {len(row.token_ids)} tokens")
        print(row.text)
        print(f"--- ground truth {row.ground_truth!r}, data source {row.data_source!r}, extra info {row.extra_info}\n")


@app.command()
def stats(
    file: MaybeRunFile = None,
    overrides: Overrides = [],  # noqa: B006  # typer reads the default, nobody changes it
    plot: Plot = None,
    run: OfRun = None,
    at: At = None,
) -> None:
    """Count a run's prompts: by file and data source, copies, over-long ones, and how long they are.

    With --run: what the prompts of a run have shown so far, by data source and difficulty.
    """
    if run is not None:
        if file or overrides or plot:
            raise ConfigError("--run RUN asks a coordinator: RUN_FILE, --set and --plot do not go with it")
        wait_for(show_prompts(run, at))
        return
    if file is None:
        raise ConfigError("RUN_FILE is missing: name a run file to count its data, or --run RUN for a run's prompts")
    spec = resolve(file, overrides)
    table = _load(spec)
    rows = [table.row(index) for index in range(len(table))]
    lengths = sorted(len(row.token_ids) for row in rows)
    out = Table(title=f"{spec.name}: {len(table)} prompts", title_justify="left")
    out.add_column("what")
    out.add_column("how many", justify="right")
    c = table.counts
    counted = [("rows read", c.rows_read), ("exact copies left out", c.duplicates)]
    counted.append((f"over {spec.data.max_prompt_length} tokens ({spec.data.overlong_prompts})", c.overlong))
    counted += list(zip((f"of {name}" for name in spec.data.train_files), c.of_files, strict=True))
    counted += [(f"data source {name}", n) for name, n in Counter(row.data_source for row in rows).most_common()]
    counted += [(f"tokens, {q:.0%} of prompts have at most", lengths[int(q * (len(lengths) - 1))]) for q in QUANTILES]
    for what, how_many in counted:
        out.add_row(what, f"{how_many:,}")
    Console(width=120).print(out)
    print("\n".join(_bars(lengths)))
    if plot is not None:
        _draw(lengths, spec, plot)


@app.command()
def prepare(file: RunFile, out: Out, overrides: Overrides = [], any_truth: AnyTruth = False) -> None:  # noqa: B006  # typer reads the default
    """Read, check, map, de-duplicate and cut once: a parquet file in the DAPO-Math-17k schema, and its manifest.

    A run then names that file alone, with the same model and prompt_format, and issues the same prompts.
    """
    from sluice.data import manifest_of, write_prompts

    spec = resolve(file, overrides)
    table = _load(spec)
    if not any_truth:
        refuse_unusable_truths(table)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_prompts(table, out / "prompts.parquet")
        (out / "manifest.json").write_text(json.dumps(manifest_of(spec, table), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from None
    print(f"{out / 'prompts.parquet'}: {len(table)} prompts of {table.counts.rows_read} rows")


def _load(spec: RunSpec) -> PromptTable:
    from sluice.data import load_prompts

    with Console(stderr=True).status("reading ...") as status:  # silent where standard error is no terminal

        def show(counts: TableCounts) -> None:
            status.update(
                f"{counts.rows_read:,} rows read, {sum(counts.of_files):,} prompts, {counts.duplicates:,} copies"
            )

        return load_prompts(spec, show)


def _bars(lengths: list[int]) -> list[str]:
    """A histogram in text: one line for each of up to BINS equal ranges of tokens."""
    low = lengths[0]
    width = max(1, -(-(lengths[-1] + 1 - low) // BINS))
    counts = Counter((length - low) // width for length in lengths)
    most = max(counts.values())
    edges = [low + i * width for i in range((lengths[-1] - low) // width + 1)]
    return [
        f"{edge:>6}-{edge + width - 1:<6} {'█' * round(BAR * counts[i] / most):<{BAR}} {counts[i]:,}"
        for i, edge in enumerate(edges)
    ]


def _draw(lengths: list[int], spec: RunSpec, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")  # no display is needed, or looked for
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4), constrained_layout=True)
    axis.hist(lengths, bins=min(60, lengths[-1] + 1))
    axis.axvline(spec.data.max_prompt_length, linestyle="--", color="black", label="data.max_prompt_length")
    axis.set(title=f"{spec.name}: {len(lengths):,} prompts", xlabel="prompt length, tokens", ylabel="prompts")
    axis.legend()
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {file}: {error}") from None
    finally:
        pyplot.close(figure)
