"""Wait until others are there, saying each ten seconds who is missing: a pod that waits is better than one that dies.

Arguments: `nats` (a server of SLUICE_NATS_URL accepts connections), `file:PATH` (it exists), `http://…` (answers 200).
Exit code 1 after an hour, with one line; 2 with one line when SLUICE_NATS_URL cannot be what was meant.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

DEADLINE_SECONDS = 3600.0
SAY_SECONDS = 10.0
PROBE_SECONDS = 3.0


def servers(urls: str) -> list[tuple[str, int]]:
    """Host and port of each of the comma-separated URLs.

    Raises: ValueError: one is no URL, or a character of its password ends it early; it is not shown.
    """
    found = []
    for number, url in enumerate(urls.split(","), start=1):
        server = _server(url.strip())
        if server is None:
            raise ValueError(
                f"SLUICE_NATS_URL: server {number} is not given as nats://user:password@host:4222 or tls://…, "
                "with a port up to 65535; write / as %2F, # as %23 and ? as %3F in a password"
            )
        found.append(server)
    return found


def _server(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 4222
    except ValueError:  # its words would show the password
        return None
    cut = parts.path.strip("/") or parts.query or parts.fragment
    return (host, port) if host and not cut else None


def is_there(what: str) -> bool:
    """Whether one of the arguments is fulfilled now."""
    if what == "nats":
        return any(_accepts(server) for server in servers(os.environ["SLUICE_NATS_URL"]))
    if what.startswith("file:"):
        return Path(what.removeprefix("file:")).exists()
    try:
        with urllib.request.urlopen(what, timeout=PROBE_SECONDS) as response:
            return bool(response.status == 200)
    except OSError:  # refused, no such name, timed out, or an HTTP error
        return False


def wait(wanted: Sequence[str], seconds: float = DEADLINE_SECONDS) -> int:
    """Return 0 once all of `wanted` were there, one after the other, or 1 after `seconds`."""
    end, say = time.monotonic() + seconds, 0.0
    for what in wanted:
        while not is_there(what):
            now = time.monotonic()
            if now >= end:
                print(
                    f"wait_for: {what} was not there within {seconds:g} s; look at what should provide it", flush=True
                )
                return 1
            if now >= say:
                print(f"wait_for: waiting for {what}", flush=True)
                say = now + SAY_SECONDS
            time.sleep(min(1.0, max(0.0, end - now)))
    return 0


def _accepts(server: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(server, timeout=PROBE_SECONDS):
            return True
    except OSError:
        return False


def main(wanted: Sequence[str]) -> int:
    if "nats" in wanted:
        try:
            servers(os.environ["SLUICE_NATS_URL"])
        except ValueError as error:
            print(f"wait_for: {error}", flush=True)
            return 2
    return wait(wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
