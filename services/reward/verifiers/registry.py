"""The verifiers that a deployment has: the built-in ones and those of its allow-list, each with a name and a label.

Read inside the worker processes only: a user's code is never imported by the server itself.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.reward.verifiers import exact, gsm8k, math_dapo
from sluice.errors import ConfigError
from sluice.types import ScoreItem

KNOB = "SLUICE_REWARD_VERIFIERS"


@dataclass(frozen=True, slots=True)
class Verifier:
    """`label` names the code that judged, e.g. `mine@1a2b3c4d`; `verify` returns what `to_outcome` reads."""

    name: str
    label: str
    verify: Callable[[ScoreItem], object]


BUILT_IN = (
    Verifier("exact", "exact", exact.verify),
    Verifier("gsm8k", "gsm8k", gsm8k.verify),
    Verifier("math_dapo", "math_dapo", math_dapo.verify),
    Verifier("math_dapo_boxed", "math_dapo_boxed", math_dapo.verify_boxed),
)


def load_verifiers(allowed: Sequence[str]) -> dict[str, Verifier]:
    """Built-in verifiers and those of the allow-list, whose entries read `name=module:function`.

    Raises:
        ConfigError: an entry is malformed, takes a name twice, or cannot be imported.
    """
    verifiers = {verifier.name: verifier for verifier in BUILT_IN}
    for entry in allowed:
        verifier = _load(entry)
        if verifier.name in verifiers:
            raise ConfigError(f"{KNOB}: {entry!r} takes the name {verifier.name!r}, which is taken already")
        verifiers[verifier.name] = verifier
    return verifiers


def _load(entry: str) -> Verifier:
    name, equals, path = entry.partition("=")
    module_name, colon, function_name = path.partition(":")
    if not (name and equals and module_name and colon and function_name):
        raise ConfigError(f"{KNOB}: {entry!r} is not of the form name=module:function")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name)
        source = inspect.getsourcefile(function)
    except Exception as error:  # importing runs a user's code, which may raise anything
        raise ConfigError(f"{KNOB}: {entry!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function) or source is None:
        raise ConfigError(f"{KNOB}: {entry!r} is not a function with Python source, so its code cannot be named")
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()[:8]
    return Verifier(name, f"{name}@{digest}", function)
