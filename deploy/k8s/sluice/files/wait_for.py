"""Wait until others are there, saying each ten seconds who is missing: a pod that waits is better than one that dies.

Arguments: `nats` (a server of SLUICE_NATS_URL accepts connections), `file:PATH` (it exists), `http://…` (answers 200).
Exit code 1 after an hour, with one line.
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


def is_there(what: str) -> bool:
    """Whether one of the arguments is fulfilled now."""
    if what == "nats":
        return any(_accepts(url) for url in os.environ["SLUICE_NATS_URL"].split(","))
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


def _accepts(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port or 4222), timeout=PROBE_SECONDS):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(wait(sys.argv[1:]))
