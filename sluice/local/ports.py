"""TCP ports of this machine: free ones, and whether a wanted one can be had."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable

from sluice.errors import ConfigError

LOOPBACK = "127.0.0.1"
LOWEST, HIGHEST = 20000, 32000
"""Below the range from which Linux takes ports for outgoing connections, so that none of those gets in between."""


def free_ports(count: int, taken: Iterable[int] = ()) -> list[int]:
    """Different ports on which nothing listens now and which are not in `taken`."""
    excluded = set(taken)
    found: list[int] = []
    # SystemRandom: two stacks that start in the same instant must not draw the same ports.
    for port in random.SystemRandom().sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST):
        if len(found) == count:
            break
        if port not in excluded and is_free(port):
            found.append(port)
    if len(found) < count:
        raise ConfigError(f"fewer than {count} free ports between {LOWEST} and {HIGHEST} on {LOOPBACK}")
    return found


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether this process could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def check_port(port: int, knob: str) -> None:
    """Raises: ConfigError: `port`, which the user asked for by `knob`, is in use."""
    if not is_free(port):
        raise ConfigError(f"{knob} = {port}: the port is in use; choose another, or leave it out to take a free one")
