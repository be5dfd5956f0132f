"""Which verifier judges a data source: a table of names and of prefixes, from the code and from the deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from services.reward.mixture import Mixture, parse_mixture
from sluice.errors import ConfigError

KNOB = "SLUICE_REWARD_ROUTES"
REMEMBERED = 1024
"""Data sources whose verifiers are looked up once; a run has a few."""

BUILT_IN_ROUTES = {
    "aime*": "math_dapo",
    "math_dapo_reasoning": "math_dapo",
    "openai/gsm8k": "gsm8k",
    "reasoning_gym*": "reasoning_gym",
}


class Routes:
    """Data source to verifier: an exact entry wins, then the longest prefix (`aime*`); a verifier's name is an entry.

    Args:
        verifiers: names of the verifiers there are.
        extra: the deployment's own entries, which win over the built-in ones.

    Raises:
        ConfigError: an entry leads to a verifier that does not exist.
    """

    def __init__(self, verifiers: Iterable[str], extra: Mapping[str, str]) -> None:
        self.verifiers = tuple(sorted(verifiers))
        built_in = {source: name for source, name in BUILT_IN_ROUTES.items() if name in self.verifiers}
        table = {name: name for name in self.verifiers} | built_in | dict(extra)
        for source, verifier in table.items():
            if parse_mixture(verifier, self.verifiers) is None:
                known = ", ".join(self.verifiers)
                raise ConfigError(f"{KNOB}: {source!r} leads to {verifier!r}, which is no sum of: {known}")
        self._exact = {source: name for source, name in table.items() if not source.endswith("*")}
        prefixes = [(source[:-1], name) for source, name in table.items() if source.endswith("*")]
        self._prefixes = sorted(prefixes, key=lambda entry: len(entry[0]), reverse=True)
        self._found = lru_cache(REMEMBERED)(self._look_up)

    def find(self, data_source: str) -> Mixture | None:
        """The verifiers with their weights, or None when nothing leads to one.

        A data source may itself be a weighted sum of verifiers, which is how a run file names several.
        """
        return self._found(data_source)

    def _look_up(self, data_source: str) -> Mixture | None:
        name = self._exact.get(data_source)
        if name is None:
            name = next((name for prefix, name in self._prefixes if data_source.startswith(prefix)), None)
        return parse_mixture(data_source if name is None else name, self.verifiers)

    def sources(self, verifier: str) -> list[str]:
        """The entries that lead to `verifier`, sorted."""
        prefixes = [f"{prefix}*" for prefix, name in self._prefixes if name == verifier]
        return sorted([source for source, name in self._exact.items() if name == verifier] + prefixes)
