"""Targets as the user writes them: `jsonl:PATH`, `tensorboard:FOLDER`, `wandb:PROJECT`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.errors import ConfigError
from sluice.tracking.jsonl import JsonLines
from sluice.tracking.target import Opener, Subject, Target
from sluice.tracking.tensorboard import TensorBoard
from sluice.tracking.weights_and_biases import WeightsAndBiases

FORMS = "jsonl:PATH, tensorboard:FOLDER or wandb:[ENTITY/]PROJECT"


def parse_target(text: str, many: bool = False) -> Opener:
    """How to open the target that `text` names, for one run or for `many`.

    Raises:
        ConfigError: there is no such kind, or nothing after it; it is one file for many runs; its library is missing.
    """
    kind, _, where = text.partition(":")
    if kind not in KINDS or not where:
        raise ConfigError(f"--to {text}: must be {FORMS}")
    if many and kind == "jsonl" and not _is_folder(where):
        raise ConfigError(f"--to {text}: is one file for many runs; give a folder: jsonl:{where}/")
    if kind in LIBRARIES and importlib.util.find_spec(LIBRARIES[kind]) is None:
        raise ConfigError(
            f"--to {text}: the library {LIBRARIES[kind]!r} is not installed; it comes with the extra `tracking`: "
            f"pip install 'sluice[tracking]'"
        )
    return lambda subject: KINDS[kind](where, subject)


def open_all(openers: Sequence[Opener], subject: Subject) -> tuple[Target, ...]:
    """All targets, or none: those that are open are closed again when a later one cannot be opened.

    Raises:
        ConfigError: as the targets.
    """
    opened: list[Target] = []
    try:
        for opener in openers:
            opened.append(opener(subject))
    except BaseException:
        for target in opened:
            target.close(failed=False)
        raise
    return tuple(opened)


def _jsonl(where: str, subject: Subject) -> Target:
    """A path that ends with a slash, or is a folder, holds a file for each run."""
    return JsonLines(Path(where) / f"{subject.name}.jsonl" if _is_folder(where) else Path(where), subject)


def _is_folder(where: str) -> bool:
    return where.endswith("/") or Path(where).is_dir()


def _tensorboard(where: str, subject: Subject) -> Target:
    """A folder holds a folder for each run: that is what TensorBoard compares."""
    return TensorBoard(Path(where) / subject.name, subject)


KINDS: dict[str, Callable[[str, Subject], Target]] = {
    "jsonl": _jsonl,
    "tensorboard": _tensorboard,
    "wandb": WeightsAndBiases,
}
LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""What a kind needs of the extra `tracking`."""
