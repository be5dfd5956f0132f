"""What `python -m services.trainer replay RUN` prints, and how it ends."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from services.trainer.replay.comparison import Row, Tolerance
from services.trainer.replay.training import Replay

AGREES, DISAGREES = 0, 1


def report(replay: Replay, chosen: argparse.Namespace) -> int:
    """Print what was found; the exit code."""
    tolerance = Tolerance(chosen.tolerance, chosen.weights_tolerance)
    agrees = all(row.agrees(tolerance) for row in replay.rows)
    if chosen.json:
        print(json.dumps(fields(replay, tolerance)))
    else:
        _show(replay, tolerance)
    return AGREES if agrees else DISAGREES


def fields(replay: Replay, tolerance: Tolerance) -> dict[str, Any]:
    """The whole finding as plain values."""
    return {
        "run": replay.run_id,
        "from": replay.start,
        "tolerance": asdict(tolerance),
        "agrees": all(row.agrees(tolerance) for row in replay.rows),
        "versions": [asdict(row) | {"agrees": row.agrees(tolerance)} for row in replay.rows],
    }


def _show(replay: Replay, tolerance: Tolerance) -> None:
    table = Table(title=f"{replay.run_id}, trained again from step {replay.start}", title_justify="left", box=None)
    for title in ("version", "loss", "recorded", "differs most", "weights", "agrees"):
        table.add_column(title, no_wrap=True)
    for row in replay.rows:
        table.add_row(*_cells(row), "yes" if row.agrees(tolerance) else "NO")
    console = Console(width=120, highlight=False)
    console.print(table)
    console.print(_verdict(replay, tolerance), soft_wrap=True)


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    worst = row.worst
    most = "-" if worst is None else "nothing" if not worst[1] else f"{worst[0]} by {worst[1]:.1e}"
    known = "gone, other hash" if row.weights_distance is None else f"{row.weights_distance:.1e} apart"
    weights = "other batches" if not row.chain_equal else "equal" if row.hash_equal else known
    return row.version, _number(row.loss), _number(row.recorded_loss), most, weights


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"


def _verdict(replay: Replay, tolerance: Tolerance) -> str:
    wrong = [row.version for row in replay.rows if not row.agrees(tolerance)]
    equal = sum(row.hash_equal for row in replay.rows)
    if wrong:
        return f"DISAGREES at {', '.join(wrong)}; {equal} of {len(replay.rows)} versions have equal weights"
    return (
        f"AGREES: {len(replay.rows) - 1} training steps within {tolerance.metrics:g} (metrics) and "
        f"{tolerance.weights:g} (weights); {equal} of {len(replay.rows)} versions are equal bit for bit"
    )
