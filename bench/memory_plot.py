"""The picture of `memory_bench.py`: `python bench/memory_plot.py artifacts/bench/memory.json FILE.png`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Curves = Mapping[str, Sequence[tuple[int, float]]]


def plot_memory(curves: Curves, file: Path) -> None:
    """Resident MiB of each service by groups issued."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed, or looked for
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4), constrained_layout=True)
    for name, points in curves.items():
        axis.plot([groups for groups, _ in points], [mib for _, mib in points], label=name)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("groups issued")
    axis.set_ylabel("MiB resident")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    plot_memory(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["settings"]["curves"], Path(sys.argv[2]))
