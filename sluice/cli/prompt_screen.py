"""What a run's prompts have shown, as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from sluice.cli.connection import connect
from sluice.prompt_views import PromptsView


async def show_prompts(run_id: str, at: str | None) -> None:
    """Print the counts and keep rates of a run's prompts. Raises: ConfigError: there is no such run, or no data set."""
    async with connect(at) as client:
        view = await client.prompts(run_id, limit=1)
    console = Console(width=120)
    console.print(_counts(run_id, view))
    console.print(_keep_rates(view))


def _counts(run_id: str, view: PromptsView) -> Table:
    table = Table(title=f"{run_id}: {view.rows:,} prompts", title_justify="left")
    table.add_column("what")
    table.add_column("how many", justify="right")
    counted = [("prompts seen in at least one scored group", view.seen)]
    counted += [("turns of the data order", view.draws), ("of these skipped", view.skipped)]
    counted += [(f"prompts drawn by lot, last {outcome}", view.by_lot[outcome]) for outcome in sorted(view.by_lot)]
    for what, how_many in counted:
        table.add_row(what, f"{how_many:,}")
    return table


def _keep_rates(view: PromptsView) -> Table:
    table = Table(title="Groups on record, by how often the policy had been right before", title_justify="left")
    for column in ("data source", "difficulty"):
        table.add_column(column)
    for column in ("scored", "kept", "keep rate", "without skips"):
        table.add_column(column, justify="right")
    for row in view.keep_rates:
        rates = (f"{row.keep_rate:.3f}", f"{row.corrected_keep_rate:.3f}")
        table.add_row(row.data_source, row.difficulty, f"{row.scored:,}", f"{row.kept:,}", *rates)
    return table
