"""What TRL's processes share: a file of settings in, a file of figures out. Runs in the environment of against_trl.py.

Like them it uses no module of Sluice, so that TRL gets a process with nothing in it but what it needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Settings = dict[str, Any]


def run(train: Callable[[Settings], Mapping[str, Any]]) -> None:
    """Give the settings of the file that the command names first to `train`, and write its figures to the second."""
    settings, result = map(Path, sys.argv[1:])
    figures = train(json.loads(settings.read_text(encoding="utf-8")))
    result.write_text(json.dumps(figures) + "\n", encoding="utf-8")


def peak_rss_mib() -> float:
    """Most memory that this process ever had resident."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
