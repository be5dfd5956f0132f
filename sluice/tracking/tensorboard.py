"""A run as TensorBoard event files: scalars by training step, and the config as hyperparameters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sluice.errors import ConfigError
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
        self.last = last_step(folder)
        self._writer = files.EventFileWriter(self.place)
        if self.last == 0:
            self._describe(subject)
        else:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(step=self.last + 1, wall_time=time.time(), session_log=start)

    def write(self, step: TrackedStep) -> None:
        """One record for all values, so that a crash leaves all of them or none."""
        value = self._summaries.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in step.values.items()]
        summary = self._summaries.Summary(value=values)
        self._add(step=step.number, wall_time=step.time.timestamp(), summary=summary)
        self._writer.flush()
        self.last = step.number

    def close(self, failed: bool) -> None:
        self._writer.close()
        self._lock.close()

    def _describe(self, subject: Subject) -> None:
        hparams = library("tensorboard.plugins.hparams.summary_v2")
        summary = hparams.hparams_pb(subject.flat_config(), trial_id=subject.run_id)
        self._add(step=0, wall_time=time.time(), summary=summary)

    def _add(self, **fields: Any) -> None:
        self._writer.add_event(self._events.Event(**fields))


def last_step(folder: Path) -> int:
    """Number of the last step of which an event file in `folder` has values; 0 when none has."""
    loader = library("tensorboard.backend.event_processing.event_file_loader")
    steps = [
        event.step
        for file in sorted(folder.glob("events.out.tfevents.*"))
        for event in loader.LegacyEventFileLoader(str(file)).Load()
        if event.HasField("summary")
    ]
    return max(steps, default=0)
