"""What follows when a service has ended: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.local.services import EXIT_CONFIGURATION, EXIT_FENCED, Service

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 10.0
LONG_LIFE_SECONDS = 30.0
"""What was healthy for this long counts as well again: the next wait is the shortest one."""
MOST_FAILED_STARTS = 8
"""Starts in a row that never became healthy, after which the stack gives up on what is not optional."""
_MOST_DOUBLINGS = 16
"""Far above the longest back-off, and far below what a float can hold."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one start of a service ended."""

    command: str
    """The process that ended first: the likeliest cause."""
    code: int | None
    """Its exit code, minus the signal's number if one ended it; None: not healthy in time, so we ended it."""
    healthy_seconds: float | None
    """From healthy to the end; None: it never became healthy."""


@dataclass(slots=True)
class History:
    """What is remembered of a service's earlier starts."""

    ever_healthy: bool = False
    failed_starts: int = 0
    """In a row, up to now."""
    doublings: int = -1
    """Of the back-off: endings in a row, up to now, since the last one after a long life or finished work."""

    def note(self, service: Service, ending: Ending) -> None:
        was_healthy = ending.healthy_seconds is not None
        self.ever_healthy |= was_healthy
        self.failed_starts = 0 if was_healthy else self.failed_starts + 1
        if finished(service, ending):
            self.doublings = -1
        elif (ending.healthy_seconds or 0.0) >= LONG_LIFE_SECONDS:
            self.doublings = 0
        else:
            self.doublings = min(self.doublings + 1, _MOST_DOUBLINGS)


@dataclass(frozen=True, slots=True)
class Restart:
    """Start again after `delay_seconds`."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The stack cannot go on; `user_fault` when the service said that its configuration is wrong."""

    user_fault: bool


def decide(service: Service, ending: Ending, history: History) -> Restart | GiveUp:
    """Restart what died, at once if it ended well; give up on wrong configuration and on what never comes up.

    An optional service that was healthy once is never given up.
    """
    if not (service.optional and history.ever_healthy):
        if ending.code == EXIT_CONFIGURATION:
            return GiveUp(user_fault=True)
        if finished(service, ending):
            return Restart(0.0)
        if not history.ever_healthy or history.failed_starts >= MOST_FAILED_STARTS:
            return GiveUp(user_fault=False)
    if ending.code == EXIT_FENCED:
        return Restart(FIRST_BACKOFF_SECONDS)
    return Restart(min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**history.doublings))


def finished(service: Service, ending: Ending) -> bool:
    """Whether it ended because a piece of work is done."""
    return ending.code == 0 and service.ends_after_work


def ending_text(service: Service, ending: Ending) -> str:
    """How it ended, as people read it."""
    if ending.code is None:
        return f"was not healthy within {service.start_seconds:g} s"
    if ending.code == EXIT_FENCED:
        return "was fenced off by another holder"
    return f"was killed by signal {-ending.code}" if ending.code < 0 else f"ended with exit code {ending.code}"
