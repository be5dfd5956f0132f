"""Which verifier judges a data source: a table of names and of prefixes, from the code and from the deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.errors import ConfigError

KNOB = "SLUICE_REWARD_ROUTES"

BUILT_IN_ROUTES = {
    "aime*": "math_dapo",
    "math_dapo_reasoning": "math_dapo",
    "openai/gsm8k": "gsm8k",
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
        table = {name: name for name in self.verifiers} | BUILT_IN_ROUTES | dict(extra)
        for source, verifier in table.items():
            if verifier not in self.verifiers:
                known = ", ".join(self.verifiers)
                raise ConfigError(f"{KNOB}: {source!r} leads to {verifier!r}, which is none of: {known}")
        self._exact = {source: name for source, name in table.items() if not source.endswith("*")}
        prefixes = [(source[:-1], name) for source, name in table.items() if source.endswith("*")]
        self._prefixes = sorted(prefixes, key=lambda entry: len(entry[0]), reverse=True)

    def find(self, data_source: str) -> str | None:
        """The name of the verifier, or None when nothing leads to one."""
        exact = self._exact.get(data_source)
        if exact is not None:
            return exact
        return next((name for prefix, name in self._prefixes if data_source.startswith(prefix)), None)

    def sources(self, verifier: str) -> list[str]:
        """The entries that lead to `verifier`, sorted."""
        prefixes = [f"{prefix}*" for prefix, name in self._prefixes if name == verifier]
        return sorted([source for source, name in self._exact.items() if name == verifier] + prefixes)
