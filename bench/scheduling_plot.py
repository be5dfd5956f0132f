"""The picture of `scheduling_bench.py`: `python bench/scheduling_plot.py artifacts/bench/scheduling.json FILE.png`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

Rows = dict[str, dict[str, dict[str, float]]]


def plot_scheduling(rows: Rows, file: Path) -> None:
    """Left: speed-up over η = 0, measured and by the model. Right: seconds by keep rate of the modes of sampling."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed, or looked for
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    _staleness(left, rows)
    _sampling(right, rows)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _staleness(axis: Any, rows: Rows) -> None:
    etas = sorted(int(match[1]) for name in rows if (match := re.fullmatch(r"η = (\d+)", name)))
    for figure, label in (("model", "model"), ("seconds", "measured")):
        seconds = [rows[f"η = {eta}"][figure]["median"] for eta in etas]
        axis.plot(range(len(etas)), [seconds[0] / s for s in seconds], marker="o", label=label)
    axis.set_xticks(range(len(etas)), [str(eta) for eta in etas])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("staleness bound η")
    axis.set_title("speed-up over synchronous training", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend()


def _sampling(axis: Any, rows: Rows) -> None:
    modes = ("rounds", "streaming", "streaming η = 1")
    rates = sorted({name.rpartition(" ")[2] for name in rows if name.startswith("rounds")}, key=float)
    for at, mode in enumerate(modes):
        seconds = [rows[f"{mode}, keep {rate}"]["seconds"]["median"] for rate in rates]
        wasted = [rows[f"{mode}, keep {rate}"] for rate in rates]
        bars = axis.bar([i + 0.27 * (at - 1) for i in range(len(rates))], seconds, 0.25, label=mode)
        shares = [row["wasted tokens"]["median"] / row["tokens"]["median"] for row in wasted]
        axis.bar_label(bars, [f"{share:.0%}" for share in shares], fontsize=8)
    axis.set_xticks(range(len(rates)), [f"keep rate {rate}" for rate in rates])
    axis.set_ylabel("seconds")
    axis.set_title("dynamic sampling; on the bars: tokens wasted", fontsize=10)
    axis.legend()


if __name__ == "__main__":
    plot_scheduling(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["figures"], Path(sys.argv[2]))
