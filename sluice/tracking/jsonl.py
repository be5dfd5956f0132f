"""A run as a file of JSON lines: first the run with its config, then a line for each training step and evaluation."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from sluice.errors import ConfigError
from sluice.tracking.evaluations import TrackedEvaluation
from sluice.tracking.steps import TrackedStep
from sluice.tracking.target import Subject


class JsonLines:
    """The file of one run. A line that a crash cut short is taken away when it is opened again."""

    def __init__(self, path: Path, subject: Subject) -> None:
        """Raises: ConfigError: the file cannot be written, is somebody else's, or is being written."""
        self.place, self.last, self.last_evaluation = str(path), 0, -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"jsonl:{path}: {error.strerror}") from None
        try:
            lock(self._file, self.place)
            self._go_on(subject)
        except BaseException:
            self._file.close()
            raise

    def write(self, step: TrackedStep) -> None:
        self._append({"step": step.number, "time": step.time.isoformat(), "version": step.version, **step.values})
        self.last = step.number

    def evaluate(self, evaluation: TrackedEvaluation) -> None:
        facts = {"evaluation": evaluation.number, "time": evaluation.time.isoformat(), "version": evaluation.version}
        self._append(facts | evaluation.values)
        self.last_evaluation = evaluation.number

    def finish(self) -> None:
        """Everything is written."""

    def close(self, failed: bool) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def _go_on(self, subject: Subject) -> None:
        """Find the last step. Raises: ConfigError: the file is about another run, or is none of ours."""
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            self._read(line, first=not whole, subject=subject)
            whole += len(line)
        self._file.truncate(whole)
        if not whole:
            self._append({"run": subject.run_id, "name": subject.name, "config": subject.config})

    def _read(self, line: bytes, first: bool, subject: Subject) -> None:
        try:
            fields = json.loads(line)
            if first and fields["run"] != subject.run_id:
                raise ConfigError(
                    f"jsonl:{self.place}: has the run {fields['run']!r}, not {subject.run_id!r}; give another file"
                )
            if "evaluation" in fields:
                self.last_evaluation = fields["evaluation"]
            elif not first:
                self.last = fields["step"]
        except (ValueError, LookupError, TypeError):
            raise ConfigError(f"jsonl:{self.place}: is there, and is no record of a run; give another file") from None

    def _append(self, fields: dict[str, Any]) -> None:
        # Opened for appending without a buffer of lines: whoever follows the file sees whole lines at once.
        self._file.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
        self._file.flush()


def lock(file: BinaryIO, place: str) -> None:
    """Be the only writer until `file` is closed, also by a crash. Raises: ConfigError: somebody else is."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"{place}: is written by another `sluice track`") from None
