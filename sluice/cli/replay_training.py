"""`sluice replay --train`: the training of a recorded run once more, by a process of the trainer's."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from sluice.local.ports import LOOPBACK, free_ports
from sluice.local.stack import TORCH_ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Again:
    """What is trained again, and how closely it is looked at."""

    run: str
    start: str | None
    """A training step with a checkpoint, or the folder of one; None: as early as possible."""
    tolerance: float
    weights_tolerance: float
    json: bool


def train_again(again: Again, nats_url: str) -> int:
    """Train in one process and compare; returns its exit code: 0 agrees, 1 disagrees, 2 cannot be done."""
    # A process of its own: torch belongs to the trainer, which only its own package imports.
    command = [sys.executable, "-m", "services.trainer", "replay", again.run]
    command += ["--tolerance", repr(again.tolerance), "--weights-tolerance", repr(again.weights_tolerance)]
    command += ["--from", again.start] if again.start is not None else []
    command += ["--json"] if again.json else []
    settings = {
        "SLUICE_NATS_URL": nats_url,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(free_ports(1)[0]),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    # A refusal is an error in a trainer's log; here its last line says the same to whoever asked.
    quiet = {"SLUICE_LOG_LEVEL": "critical"}
    return subprocess.run(command, env=TORCH_ENVIRONMENT | quiet | os.environ | settings, check=False).returncode
