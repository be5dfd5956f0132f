"""The edge of a service's process: how it ends, with which exit code, and the one line that says why."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from sluice.errors import ConfigError, SluiceError
from sluice.secrets import redact
from sluice.storage import disk_fault

YOUNG_OBJECTS = 10_000
"""New objects after which the garbage collector looks at them: by default 700, which a few groups in flight are."""
EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
"""A person has to change something: starting again cannot help."""


def run_service(name: str, work: Callable[[], int], failures: tuple[type[Exception], ...] = ()) -> int:
    """The exit code of `work`; an error that a person can act on becomes one line on standard error.

    Args:
        failures: what ends this service with exit code 1, beside SluiceError.
    """
    try:
        return work()
    except ConfigError as error:
        return say_why(name, str(error), EXIT_CONFIGURATION)
    except SluiceError as error:
        return say_why(name, str(error), EXIT_FAILED)
    except failures as error:
        return say_why(name, f"{type(error).__name__}: {error}", EXIT_FAILED)
    except OSError as error:
        refused = disk_fault(error)
        if refused is None:
            raise
        return say_why(name, refused, EXIT_CONFIGURATION)


def calm_collector() -> None:
    """For a service that has imported what it needs: what is there now stays, so the garbage collector spares it.

    Modules are most of all objects. A full collection went over them each time, and the event loop stood still for 60
    to 90 ms; together with the many small collections it took a fifth of a busy worker's processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def say_why(name: str, message: str, code: int) -> int:
    """Print the last line of a service, in which no secret stands; returns `code`."""
    print(f"sluice-{name}: {redact(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code
