"""A run as TensorBoard event files: scalars by training step, and the config as hyperparameters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sluice.errors import ConfigError
from sluice.tracking.evaluations import PREFIX, TrackedEvaluation
from sluice.tracking.jsonl import lock
from sluice.tracking.steps import TrackedStep
from sluice.tracking.target import Subject, library

LOCK_FILE = ".sluice-track"


class TensorBoard:
    """The folder of one run. Each opening adds an event file; it takes back whatever is not below its first step."""

    def __init__(self, folder: Path, subject: Subject) -> None:
        """Raises: ConfigError: the folder cannot be written, or is being written."""
        files = library("tensorboard.summary.writer.event_file_writer")
        self._events, self._summaries = (
            library(f"tensorboard.compat.proto.{name}_pb2") for name in ("event", "summary")
        )
        self.place = str(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / LOCK_FILE).open("wb")
        except OSError as error:
            raise ConfigError(f"tensorboard:{folder}: {error.strerror}") from None
        lock(self._lock, self.place)
        self.last, self.last_evaluation = last_numbers(folder)
        self._writer = files.EventFileWriter(self.place)
        if self.last == 0:
            self._describe(subject)
        else:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(step=self.last + 1, wall_time=time.time(), session_log=start)

    def write(self, step: TrackedStep) -> None:
        self._write_values(step.number, step.time, step.values)
        self.last = step.number

    def evaluate(self, evaluation: TrackedEvaluation) -> None:
        """At the step that made the version, as its own tags are in order whatever the others are."""
        self._write_values(evaluation.number, evaluation.time, evaluation.values)
        self.last_evaluation = evaluation.number

    def finish(self) -> None:
        """Everything is written."""

    def close(self, failed: bool) -> None:
        self._writer.close()
        self._lock.close()

    def _write_values(self, number: int, at: datetime, values: Mapping[str, float]) -> None:
        """One record for all values, so that a crash leaves all of them or none."""
        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(value=[value(tag=name, simple_value=v) for name, v in values.items()])
        self._add(step=number, wall_time=at.timestamp(), summary=summary)
        self._writer.flush()

    def _describe(self, subject: Subject) -> None:
        hparams = library("tensorboard.plugins.hparams.summary_v2")
        summary = hparams.hparams_pb(subject.flat_config(), trial_id=subject.run_id)
        self._add(step=0, wall_time=time.time(), summary=summary)

    def _add(self, **fields: Any) -> None:
        self._writer.add_event(self._events.Event(**fields))


def last_numbers(folder: Path) -> tuple[int, int]:
    """Numbers of the last step (0: none) and of the last evaluation (-1: none) that event files in `folder` have."""
    loader = library("tensorboard.backend.event_processing.event_file_loader")
    steps, evaluations = 0, -1
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for event in loader.LegacyEventFileLoader(str(file)).Load():
            if not event.HasField("summary"):
                continue
            if any(value.tag.startswith(PREFIX) for value in event.summary.value):
                evaluations = max(evaluations, event.step)
            else:
                steps = max(steps, event.step)
    return steps, evaluations
