"""`python -m services.trainer`: one rank of a trainer; alone it is rank 0 of 1. Serves one run, then ends."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from services.trainer.config import TrainerSettings
from sluice.errors import ConfigError
from sluice.telemetry import configure_logging, get_logger

EXIT_CONFIG = 2


def main() -> int:
    try:
        settings = TrainerSettings.from_environment(os.environ)
    except ConfigError as error:
        print(f"sluice-trainer: {error}", file=sys.stderr)
        return EXIT_CONFIG
    configure_logging(settings.log_level)
    signal.signal(signal.SIGTERM, _terminate)
    # DeepSpeed's `env://` rendezvous reads these, so a lone rank needs no variables at all.
    for name in ("rank", "world_size", "local_rank", "master_addr", "master_port"):
        os.environ[name.upper()] = str(getattr(settings, name))
    from services.trainer.process import run_rank  # torch takes seconds, which a wrong setting should not cost

    return run_rank(settings, get_logger("trainer").bind(rank=settings.rank))


def _terminate(number: int, frame: FrameType | None) -> None:
    """Nothing is lost by ending here: the next trainer replays from the newest checkpoint."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
