"""The verifiers that a deployment has: the built-in ones and those of its allow-list, each with a name and a label.

Read inside the worker processes and their template only: a user's code is never imported by the server itself. A
built-in verifier's module is imported when it is first needed, for some bring a library along that takes seconds.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path

from sluice.errors import ConfigError
from sluice.types import ScoreItem

CHECK = "check:"
"""Before a verifier's name: its check of a ground truth, run as if it were a verifier, an error being what is wrong."""
KNOB = "SLUICE_REWARD_VERIFIERS"
ENTRY_POINTS = "sluice.verifiers"

Judge = Callable[[ScoreItem], object]
TruthCheck = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Verifier:
    """`label` names the code that judged, e.g. `mine@1a2b3c4d`; what `verify` returns, `to_outcome` reads."""

    name: str
    label: str
    find: Callable[[], Judge]
    find_check: Callable[[], TruthCheck] | None = None

    def verify(self, item: ScoreItem) -> object:
        return self.find()(item)

    def check_truth(self, item: ScoreItem) -> bool:
        """Raises: ValueError: the verifier cannot judge by the item's ground truth."""
        if not item.ground_truth.strip():
            raise ValueError("ground_truth is empty")
        if self.find_check is not None:
            self.find_check()(item.ground_truth)
        return True

    @property
    def truth_check(self) -> Verifier:
        return Verifier(f"{CHECK}{self.name}", self.label, lambda: self.check_truth)


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Where a built-in verifier's functions are, under `services.reward.verifiers`.

    Its label covers the sources of its module and of those that it `uses`, and the versions of its `libraries`.
    """

    name: str
    module: str
    function: str = "verify"
    check: str | None = None
    uses: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def heavy(self) -> bool:
        """Its import takes so long that no worker process should do it by itself."""
        return bool(self.libraries)

    def verifier(self) -> Verifier:
        module = f"{__package__}.{self.module}"
        check = partial(_attribute, module, self.check) if self.check else None
        return Verifier(self.name, f"{self.name}@{self._digest()}", partial(_attribute, module, self.function), check)

    def _digest(self) -> str:
        folder = Path(__file__).parent
        paths = [folder / name for name in (self.module, *self.uses)]
        files = [file for path in paths for file in (sorted(path.glob("*.py")) or [path.with_suffix(".py")])]
        return digest(files, [f"{library} {version(library)}" for library in self.libraries])

    @property
    def installed(self) -> bool:
        """Whether its libraries are there; a deployment may do without them."""
        try:
            return all(version(library) for library in self.libraries)
        except PackageNotFoundError:
            return False


_READING = ("extraction", "cleaning", "exact")

BUILT_IN = (
    BuiltIn("exact", "exact"),
    BuiltIn("gsm8k", "gsm8k", check="check_truth"),
    BuiltIn(
        "math",
        "math",
        check="read_truth",
        uses=(*_READING, "evaluation"),
        libraries=("math-verify", "latex2sympy2-extended", "sympy"),
    ),
    BuiltIn("math_dapo", "math_dapo"),
    BuiltIn("math_dapo_boxed", "math_dapo", function="verify_boxed"),
    BuiltIn("multiple_choice", "multiple_choice", uses=_READING),
    BuiltIn("reasoning_gym", "reasoning_gym", uses=(*_READING, "evaluation"), libraries=("reasoning-gym", "sympy")),
    BuiltIn("regex", "regex", check="compiled", uses=("exact",)),
)
CODE = BuiltIn("code", "code", check="read_tests", uses=("exact", "sandbox"))
"""There only where the deployment says so: it runs what models write."""


def load_verifiers(allowed: Sequence[str], code: bool = False) -> dict[str, Verifier]:
    """Built-in verifiers, `code` where it is enabled, and those of the allow-list; each also with its CHECK before it.

    An entry of the list reads `name=module:function`, or is the name of an entry point of the group `sluice.verifiers`.

    Raises:
        ConfigError: an entry is malformed, takes a name twice, or cannot be imported.
    """
    built_in = [entry for entry in (*BUILT_IN, *([CODE] if code else [])) if entry.installed]
    verifiers = {entry.name: entry.verifier() for entry in built_in}
    for entry in allowed:
        verifier = _load(entry)
        if verifier.name in verifiers:
            raise ConfigError(f"{KNOB}: {entry!r} takes the name {verifier.name!r}, which is taken already")
        verifiers[verifier.name] = verifier
    return verifiers | {check.name: check for check in (verifier.truth_check for verifier in verifiers.values())}


def heavy_names() -> Mapping[str, str]:
    """Name to module of each built-in verifier whose import takes long."""
    return {entry.name: f"{__package__}.{entry.module}" for entry in BUILT_IN if entry.heavy}


def digest(files: Sequence[Path], more: Sequence[str] = ()) -> str:
    """Eight hex digits for a verifier's code: the same for the same sources and libraries, on any machine."""
    hashed = hashlib.sha256()
    for file in files:
        hashed.update(file.read_bytes())
    for text in more:
        hashed.update(text.encode())
    return hashed.hexdigest()[:8]


def _attribute(module: str, name: str) -> Callable[..., object]:
    found: Callable[..., object] = getattr(importlib.import_module(module), name)
    return found


def _load(entry: str) -> Verifier:
    name, equals, path = entry.partition("=")
    if equals and not (name and all(path.partition(":"))):
        raise ConfigError(f"{KNOB}: {entry!r} is not of the form name=module:function")
    point = EntryPoint(name, path, ENTRY_POINTS) if equals else _entry_point(name)
    try:
        function = point.load()
        source = inspect.getsourcefile(function)
    except Exception as error:  # importing runs a user's code, which may raise anything
        raise ConfigError(f"{KNOB}: {entry!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function) or source is None:
        raise ConfigError(f"{KNOB}: {entry!r} is not a function with Python source, so its code cannot be named")
    return Verifier(name, f"{name}@{digest([Path(source)])}", lambda: function)


def _entry_point(name: str) -> EntryPoint:
    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if len(found) != 1:
        raise ConfigError(
            f"{KNOB}: {name!r} is not of the form name=module:function, "
            f"and {len(found)} installed packages have an entry point of that name in {ENTRY_POINTS!r}"
        )
    return found[0]
