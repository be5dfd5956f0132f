"""Whether an address can be listened on, asked before a library does it whose refusal nobody could read."""

from __future__ import annotations

import os
import socket

from sluice.errors import ConfigError


def check_listening(address: str, knob: str) -> None:
    """See that this process could listen on `address`, which is `host:port`.

    Raises:
        ConfigError: the port is in use, or the host is none of this machine's; the line names `knob`, which set it.
    """
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except socket.gaierror as error:
        raise ConfigError(f"{knob}={address}: {error.strerror}; choose a host of this machine") from None
    except OSError as error:
        raise ConfigError(f"{knob}={address}: {plain(error)}; choose another") from None


def plain(error: OSError) -> str:
    """What the system says, without what a library adds to it."""
    return os.strerror(error.errno) if error.errno else str(error)
