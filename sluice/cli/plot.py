"""The picture of a run: reward, keep rate, response length and staleness by training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.views import BatchView, StepView


def plot_run(steps: Sequence[StepView], title: str, file: Path) -> None:
    """Draw the run as a PNG. `steps` in order; measurements that are missing leave gaps."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed, or looked for
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), sharex=True, constrained_layout=True)
    figure.suptitle(title)
    panels: list[tuple[str, Callable[[BatchView], float | None]]] = [
        ("mean reward, all sampled groups", lambda b: b.reward_mean),
        ("keep rate", lambda b: b.keep_rate),
        ("mean response length, tokens", lambda b: b.response_length_mean),
        ("mean staleness, policy versions", mean_staleness),
    ]
    x = [step.step + 1 for step in steps]
    for axis, (name, value) in zip(axes.flat, panels, strict=True):
        y = [value(step.batch) for step in steps]
        axis.plot(x, [float("nan") if v is None else v for v in y], marker="o", markersize=3)
        axis.set_ylim(0, 1.15 * max((v for v in y if v), default=1.0))
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.3)
    for axis in axes[0]:
        axis.set_ylim(0, 1.05)
    for axis in axes[1]:
        axis.set_xlabel("training step")
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def mean_staleness(batch: BatchView) -> float | None:
    """Over the groups of a batch; None when nobody measured it."""
    groups = sum(batch.staleness.values())
    return sum(int(s) * n for s, n in batch.staleness.items()) / groups if groups else None
