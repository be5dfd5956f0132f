"""`python -m services.trainer.launch`: torchrun for the trainer, with an exit code that a supervisor can act on.

It takes torchrun's options. Torchrun itself ends with 1 whatever its ranks end with, so whoever starts it again cannot
tell a setting that is wrong (2) from a rank that died. This ends with the exit code of the rank that failed first.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

MODULE = "services.trainer"


def main() -> int:
    """The exit code of the ranks: 0 when all ended well, else that of the first that did not."""
    try:
        options = parse_args([*sys.argv[1:], "--module", MODULE])  # type: ignore[no-untyped-call]  # torch's own gap
        run(options)  # type: ignore[no-untyped-call]  # torch's own gap
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return code_of(failure.exitcode)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


def code_of(exitcode: int) -> int:
    """As a shell says it: 128 and the signal's number for what a signal ended."""
    return exitcode if exitcode >= 0 else 128 - exitcode


if __name__ == "__main__":
    sys.exit(main())
