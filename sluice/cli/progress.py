"""What is known of a run while it is watched: a pure fold of events and status, and the words for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from sluice.views import BatchView, EventView, RunView, StepView, TrainingView, WaitView

MOST_NOTES = 5
COLUMNS = (
    "step",
    "version",
    "reward",
    "kept",
    "filtered",
    "staleness",
    "length",
    "tokens/s",
    "loss",
    "grad",
    "seconds",
)


@dataclass
class Progress:
    """Feed it with `see_event` and `see_run`; read `rows`, `headline` and `new_lines`."""

    total_steps: int
    run: RunView | None = None
    batches: dict[int, BatchView] = field(default_factory=dict)
    trainings: dict[int, TrainingView] = field(default_factory=dict)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTES))
    _said_part: str = ""

    def see_run(self, run: RunView) -> list[str]:
        """Take the run's status; returns what a person should be told."""
        before, self.run = self.run, run
        news = []
        if before is None or (before.state, before.reason) != (run.state, run.reason):
            news.append(f"run {run.id} is {run.state}" + (f": {run.reason}" if run.reason else ""))
        if run.bottleneck and run.bottleneck.part != self._said_part:
            self._said_part = run.bottleneck.part
            news.append(f"bottleneck: {self.bottleneck()}")
        return news

    def see_event(self, event: EventView) -> list[str]:
        """Take one event; returns what a person should be told. One that cannot be read tells nothing."""
        try:
            return self._see(event)
        except ValidationError:
            return []

    def _see(self, event: EventView) -> list[str]:
        match event.kind:
            case "batch":
                batch = BatchView.model_validate(event.fields)
                self.batches[batch.step] = batch
                return []
            case "step":
                training = TrainingView.model_validate(event.fields)
                self.trainings[training.step] = training
                return [self.line(training.step)]
            case "evaluation":
                note = evaluation_line(event.fields)
                self.notes.append(note)
                return [note]
            case "alarm" | "worker_joined" | "worker_left":
                note = _note(event)
                self.notes.append(note)
                return [note]
            case _:
                return []

    def see_steps(self, steps: Iterable[StepView]) -> list[str]:
        """Take finished training steps whose events did not come; returns what a person should be told of them."""
        missed = [step for step in steps if step.training is not None and step.step not in self.trainings]
        for step in missed:
            assert step.training is not None
            self.batches[step.step], self.trainings[step.step] = step.batch, step.training
        return [self.line(step.step) for step in missed]

    def line(self, step: int) -> str:
        """Training step `step` in one line."""
        cells = dict(zip(COLUMNS, self.cells(step), strict=True))
        return (
            f"step {cells['step']}/{self.total_steps}  {cells['version']}  reward {cells['reward']}  "
            f"kept {cells['kept']}  filtered {cells['filtered']}  staleness {cells['staleness']}  "
            f"length {cells['length']}  {cells['tokens/s']} tokens/s  loss {cells['loss']}  "
            f"grad {cells['grad']}  {cells['seconds']} s"
        )

    def cells(self, step: int, brief: bool = False) -> tuple[str, ...]:
        """Training step `step` as the values of COLUMNS; reward is over all sampled groups.

        Args:
            brief: how many groups were dropped, but not why; which staleness there was, but not how often.
        """
        b = self.batches.get(step, BatchView(step=step))
        t = self.trainings.get(step, TrainingView(step=step))
        return (
            str(step + 1),
            t.version or "-",
            _number(b.reward_mean, 3),
            "-" if b.keep_rate is None else f"{b.keep_rate:.0%}",
            str(sum(b.dropped.values())) if brief else dropped_text(b.dropped),
            _staleness_range(b.staleness) if brief else _staleness(b.staleness),
            _number(b.response_length_mean, 1),
            _number(b.tokens_per_second, 0),
            _number(t.loss, 4),
            _number(t.grad_norm, 2),
            _number(t.seconds.get("total"), 1),
        )

    def waits(self) -> str:
        """Who waits for whom now, or an empty text."""
        waits = self.run.waits if self.run else ()
        return "; ".join(f"{w.name} for {w.waits_for} ({w.seconds:.0f} s)" for w in waits)

    def bottleneck(self) -> str:
        """What holds the run back and which knob would help, or an empty text."""
        found = self.run.bottleneck if self.run else None
        if found is None:
            return ""
        advice = f"; would help: {found.knob}" if found.knob else ""
        return f"{found.part}: {found.text}{advice}"


def dropped_text(dropped: dict[str, int]) -> str:
    """Counts by reason, e.g. `all_correct 4, all_wrong 2`."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()) if count) or "none"


def _staleness(groups: dict[str, int]) -> str:
    """Groups by staleness, e.g. `0:4 1:12`."""
    return " ".join(f"{s}:{n}" for s, n in sorted(groups.items(), key=lambda item: int(item[0]))) or "-"


def _staleness_range(groups: dict[str, int]) -> str:
    """The lowest and the highest, e.g. `0-1`."""
    found = sorted(int(staleness) for staleness in groups)
    return "-".join(str(staleness) for staleness in dict.fromkeys((found[0], found[-1]))) if found else "-"


def evaluation_line(fields: dict[str, Any]) -> str:
    """An `evaluation` event in one line: what begins, what came out of it, or what it means for training."""
    version, state, reason = (str(fields.get(name) or "") for name in ("version", "state", "reason"))
    if not version:
        return f"{state.replace('_', ' ')}: {reason}"
    if state == "running":
        return f"evaluation of {version} begins: {fields.get('responses')} responses"
    shown = [_score(name, value, fields.get("intervals") or {}) for name, value in _widest(fields.get("scores") or {})]
    took = f" in {fields['seconds']:.0f} s" if isinstance(fields.get("seconds"), float) else ""
    said = f"evaluation of {version} {state}{took}" + (f": {reason}" if reason else "")
    return "  ".join([said, *shown])


def _widest(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Of each set and kind of metric the one over the most responses."""
    by_kind: dict[str, tuple[int, str]] = {}
    for name in scores:
        kind, _, k = name.partition("@")
        by_kind[kind] = max(by_kind.get(kind, (0, "")), (int(k), name))
    return [(name, scores[name]) for _, name in by_kind.values()]


def _score(name: str, value: float, intervals: dict[str, list[float]]) -> str:
    low, high = intervals.get(name, (value, value))
    return f"{name} {value:.3f} ({low:.3f}-{high:.3f})"


def first_line(reason: str) -> str:
    """What a reason of several lines, such as an error of a library, begins with."""
    first, *rest = reason.splitlines() or [""]
    return f"{first} …" if rest else first


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _note(event: EventView) -> str:
    if event.kind == "alarm":
        return f"alarm: {_alarm(event.fields)}"
    return f"{event.kind.replace('_', ' ')} {event.fields.get('worker', '')}".strip()


def _alarm(fields: Mapping[str, Any]) -> str:
    """The coordinator tells of a wait past its deadline; a worker and the trainer of an error in something named."""
    if "waits_for" in fields:
        wait = WaitView.model_validate(fields)
        return f"{wait.name} has waited for {wait.waits_for} for {wait.seconds:.0f} s"
    return f"{fields.get('wait') or fields.get('alarm')}: {fields.get('error')}"
