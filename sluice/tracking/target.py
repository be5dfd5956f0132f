"""Where a run is tracked: what a target does, and how the user names one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.tracking.evaluations import TrackedEvaluation
from sluice.tracking.steps import TrackedStep
from sluice.views import RunView


class Target(Protocol):
    """A tracker's record of one run, open for writing.

    Opening one finds out what it holds already. All methods raise ConfigError where the user can mend it.
    """

    place: str
    """Where people look at it."""
    last: int
    """Number of the last step that it holds; 0 when it has none."""
    last_evaluation: int
    """Number of the last policy version whose evaluation it holds; -1 when it has none."""

    def write(self, step: TrackedStep) -> None:
        """Add a step whose number is above `last`."""
        ...

    def evaluate(self, evaluation: TrackedEvaluation) -> None:
        """Add an evaluation whose number is above `last_evaluation`; the steps go on meanwhile."""
        ...

    def finish(self) -> None:
        """The run has ended: no step comes any more."""
        ...

    def close(self, failed: bool) -> None:
        """What was written stays, also beyond this machine's sleep. `failed`: the run has failed."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """The run as a tracker shows it: what it is called there, and what it was configured with."""

    run_id: str
    name: str
    config: dict[str, Any]
    """The run's whole spec with its defaults, by section, and what identifies the run and its data."""

    @classmethod
    def of(cls, run: RunView, name: str | None = None) -> Subject:
        """`name`: what trackers call the run; its id by default."""
        facts = {
            "run_id": run.id,
            "config_hash": run.config_hash,
            "data_fingerprint": (run.data or {}).get("fingerprint"),
        }
        return cls(run.id, name or run.id, {**(run.spec or {}), **facts})

    def flat_config(self) -> dict[str, bool | int | float | str]:
        """The config as `section.field`, for trackers that know no tables; a list is its text, unset is left out."""
        return dict(_flat("", self.config))


def _flat(prefix: str, value: object) -> Iterator[tuple[str, bool | int | float | str]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), entry)
    elif value is not None:
        yield prefix, value if isinstance(value, bool | int | float | str) else json.dumps(value)


Opener = Callable[[Subject], Target]
"""Opens the record of one run; where it is kept is settled."""


def library(module: str) -> Any:
    """A module of the extra `tracking`, loaded now and not before; `parse_target` has seen that it is installed."""
    return importlib.import_module(module)
