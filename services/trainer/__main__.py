"""`python -m services.trainer`: one rank of a trainer; alone it is rank 0 of 1. Serves one run, then ends.

`python -m services.trainer replay RUN` trains a recorded run again instead, and compares.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType

from services.trainer.config import TrainerSettings
from services.trainer.replay.arguments import parse
from sluice.service import run_service
from sluice.storage import check_writable
from sluice.telemetry import configure_logging, get_logger

REPLAY = "replay"


def main() -> int:
    """Run a rank; the exit codes are those of docs/operations.md."""
    chosen = parse(sys.argv[2:]) if sys.argv[1:2] == [REPLAY] else None
    return run_service("trainer", lambda: _run(chosen))


def _run(chosen: argparse.Namespace | None) -> int:
    settings = TrainerSettings.from_environment(os.environ)
    configure_logging(settings.log_level, service="trainer")
    signal.signal(signal.SIGTERM, _terminate)
    if settings.rank == 0 and chosen is None:
        check_writable(settings.data_dir, "SLUICE_DATA_DIR")
    # DeepSpeed's `env://` rendezvous reads these, so a lone rank needs no variables at all.
    for name in ("rank", "world_size", "local_rank", "master_addr", "master_port"):
        os.environ[name.upper()] = str(getattr(settings, name))
    # Torch takes seconds, and what trains with it takes more: a wrong setting should cost neither.
    from services.trainer.device import on_gpu

    gpu = on_gpu(settings)
    from services.trainer.process import run_rank, run_replay

    log = get_logger("trainer").bind(rank=settings.rank)
    return run_rank(settings, gpu, log) if chosen is None else run_replay(settings, gpu, chosen, log)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Nothing is lost by ending here: the next trainer replays from the newest checkpoint."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
