"""The picture of `ablation_bench.py`: `python bench/ablation_plot.py artifacts/bench/ablation.json FILE.png`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

Rows = dict[str, dict[str, dict[str, float]]]
PANELS = {
    "accuracy": "accuracy over all sampled groups",
    "entropy": "entropy of trained tokens, nats",
    "length": "response length, tokens",
    "truncated": "share of responses cut at the limit",
}


def plot_ablation(rows: Rows, file: Path) -> None:
    """A panel for each figure, a line for each rung: means over seeds, with their smallest and largest."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed, or looked for
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(2, 2, figsize=(10, 6.5), sharex=True, constrained_layout=True)
    for axis, (figure, title) in zip(axes.flat, PANELS.items(), strict=True):
        for rung, points in curves(rows, figure).items():
            steps = [step for step, _ in points]
            (line,) = axis.plot(steps, [spread["mean"] for _, spread in points], marker="o", markersize=3, label=rung)
            lows, highs = ([spread[end] for _, spread in points] for end in ("min", "max"))
            axis.fill_between(steps, lows, highs, color=line.get_color(), alpha=0.1)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("training step")
    drawing.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    drawing.savefig(file, dpi=120)
    pyplot.close(drawing)


def curves(rows: Rows, figure: str) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """(step, figure) of each rung, in the order of the steps."""
    found: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for row, figures in rows.items():
        rung, _, step = row.rpartition(", step ")
        found.setdefault(rung.replace("_", " "), []).append((int(step), figures[figure]))
    return found


if __name__ == "__main__":
    plot_ablation(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["figures"], Path(sys.argv[2]))
