"""What the supervisor needs to know of a service: plain data, nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

EXIT_CONFIGURATION = 2
"""A service ends with this after one line about what the user has to change: starting it again cannot help."""
EXIT_FENCED = 3
"""A service ends with this when another holder wrote since: it starts again by reading, at once."""


@dataclass(frozen=True, slots=True)
class HttpHealth:
    """Healthy once GET `path` on `port` of this machine answers 200."""

    port: int
    path: str


@dataclass(frozen=True, slots=True)
class TcpHealth:
    """Healthy once something accepts connections on `port` of this machine."""

    port: int


Health = HttpHealth | TcpHealth


@dataclass(frozen=True, slots=True)
class Command:
    """One process. `environment` is added to the supervisor's own."""

    name: str
    """Names the log file; unique in the stack."""
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Service:
    """Processes that live and die together: one, or the ranks of a trainer."""

    name: str
    commands: tuple[Command, ...]
    health: tuple[Health, ...]
    after: tuple[str, ...] = ()
    """Services that must be healthy before this one starts; it stops before they do."""
    start_seconds: float = 60.0
    """Longest time from start to healthy."""
    fresh_ports: tuple[str, ...] = ()
    """Environment names that get another free port at every start."""
    ends_after_work: bool = False
    """Exit code 0 means a piece of work is done; it is started again at once for the next one."""
    folders: tuple[Path, ...] = ()
    """Made before every start, because somebody may have deleted them since the one before."""
    optional: bool = False
    """The stack works without it: once it was healthy, it is started again for ever, whatever it ends with."""
