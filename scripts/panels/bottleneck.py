"""The section that people open first: who waits for whom, and what would help."""

from __future__ import annotations

from panels.panel import Kind, Panel, Query, Section, runs
from services.coordinator.bottleneck import KNOBS, Part

KNOB_TABLE = "\n".join(
    ["| held back by | what helps |", "| --- | --- |"]
    + [f"| `{part}` | {KNOBS[part] or 'nothing: nobody waits much'} |" for part in Part]
)

WHO_WAITS_FOR_WHOM = Section(
    "Who waits for whom",
    (
        Panel(
            "Held back by",
            "The part that holds the run back now: the verdict that `sluice watch` and the run's status show too. "
            "Empty until enough is measured, and while the run does not run.",
            (Query(f"{runs('sluice_bottleneck')} == 1", "{{part}} · {{run}}"),),
            Kind.NAMES,
            width=4,
            height=8,
        ),
        Panel(
            "Held back by, over time",
            "A line for each part, coloured while the verdict names it.",
            (Query(f"max by (namespace, run, part) ({runs('sluice_bottleneck')})", "{{part}} · {{run}}"),),
            Kind.STATES,
            width=6,
            height=8,
        ),
        Panel(
            "What the verdict is made from",
            "Shares of the time. A trainer that waits wants more rollouts; rollouts that idle wait for the trainer, or "
            "for a higher staleness bound.",
            (Query(f"max by (namespace, run, share) ({runs('sluice_bottleneck_share')})", "{{share}} · {{run}}"),),
            unit="percentunit",
            width=6,
            height=8,
            maximum=1,
        ),
        Panel(
            "Which knob helps", "What to change for each verdict.", kind=Kind.TEXT, width=8, height=8, text=KNOB_TABLE
        ),
    ),
)
