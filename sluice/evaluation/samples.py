"""The folder of an evaluation: its settings, and a line for each judged response, so that a second start goes on."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.errors import ConfigError
from sluice.types import Verdict, VerdictKind

SETTINGS_FILE, SAMPLES_FILE, SUMMARY_FILE = "settings.json", "samples.jsonl", "summary.json"


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to a problem and what became of it. `sample` counts from 0 within its problem."""

    problem: int
    sample: int
    data_source: str
    response: str
    tokens: int
    finish_reason: str
    weight_version: str
    verdict: Verdict


class EvaluationFolder:
    """The one writer of a folder, by a lock that ends with the process.

    Args:
        identity: what decides the samples; a folder that has samples of another one is refused.

    Raises:
        ConfigError: another evaluation is at work here, the settings differ, or the disk says no.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        with ExitStack() as opened:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._settings = opened.enter_context((folder / SETTINGS_FILE).open("a+b"))
                self._claim(identity)
                self._samples = opened.enter_context((folder / SAMPLES_FILE).open("a+b"))
                self.done = self._read()
            except OSError as error:
                raise ConfigError(f"--out {folder}: {error.strerror or error}") from None
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def add(self, samples: Iterable[Sample]) -> None:
        """Store judged responses, in whole lines; what is stored outlives the death of this process.

        Raises:
            ConfigError: the disk is full.
        """
        new = list(samples)
        text = "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in new)
        try:
            self._samples.write(text.encode("utf-8", "backslashreplace"))
            self._samples.flush()
        except OSError as error:
            raise ConfigError(f"--out {self.folder}: {error.strerror or error}") from None
        self.done += new

    def missing(self, problems: int, samples: int) -> list[tuple[int, list[int]]]:
        """For each problem that is not complete, the numbers of the responses that it lacks."""
        there = {(one.problem, one.sample) for one in self.done}
        wanted = ((p, [i for i in range(samples) if (p, i) not in there]) for p in range(problems))
        return [(problem, lacking) for problem, lacking in wanted if lacking]

    def _claim(self, identity: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._settings, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--out {self.folder}: another evaluation is at work here") from None
        samples = self.folder / SAMPLES_FILE
        self._settings.seek(0)
        if samples.exists() and samples.stat().st_size:
            begun = _object(self.folder / SETTINGS_FILE, self._settings.read())
            _refuse_other(self.folder, begun, identity)
            return
        self._settings.truncate()
        self._settings.write((json.dumps(identity, indent=1) + "\n").encode())
        self._settings.flush()

    def _read(self) -> list[Sample]:
        """What is stored. A last line that was cut when its writer was killed is taken away."""
        self._samples.seek(0)
        samples, end = [], 0
        for number, line in enumerate(self._samples, 1):
            if not line.endswith(b"\n"):
                break
            samples.append(_sample(self.folder / SAMPLES_FILE, number, line))
            end += len(line)
        self._samples.truncate(end)
        return samples


def _refuse_other(folder: Path, begun: dict[str, Any], identity: dict[str, Any]) -> None:
    names = sorted(name for name in {*begun, *identity} if begun.get(name) != identity.get(name))
    if names:
        was = ", ".join(f"{name} = {begun.get(name)!r} (now {identity.get(name)!r})" for name in names)
        raise ConfigError(f"--out {folder}: was begun with {was}; choose another folder, or the same settings")


def _sample(file: Path, number: int, line: bytes) -> Sample:
    fields = _object(file, line, number)
    try:
        verdict = fields["verdict"]
        kind = VerdictKind(verdict["kind"])
        return Sample(**(fields | {"verdict": Verdict(**(verdict | {"kind": kind}))}))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file}: row {number} is no sample of this program: {error}") from None


def _object(file: Path, raw: bytes, number: int = 1) -> dict[str, Any]:
    try:
        fields = json.loads(raw)
    except ValueError as error:
        raise ConfigError(f"{file}: row {number} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{file}: row {number} is not a JSON object")
    return fields


def write_summary(folder: Path, text: str) -> Path:
    """Replace the summary in one piece. Raises: ConfigError: the disk says no."""
    final, part = folder / SUMMARY_FILE, folder / f".{SUMMARY_FILE}.part"
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(final)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror or error}") from None
    return final
