"""A local stack whose engines and trainer are simulated; every other service in it is the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sluice.local.services import Command, Service


@dataclass(frozen=True, slots=True)
class Simulation:
    """What is modelled; see `bench.simulated.latency` for the forms of `latency` and `train`."""

    latency: str = "constant:0.1"
    train: str = "constant:1.0"
    keep_rate: float = 0.5
    pace: float = 100.0
    """Tokens a second of one response."""
    concurrency: int = 0
    """Prompts that an engine generates at a time; 0: all it is given."""
    groups_in_flight: int = 1024
    """Of each rollout worker."""


def simulated(simulation: Simulation) -> Callable[[Service], Service]:
    """How to change each service of a stack: for `StackOptions.change`."""

    def change(service: Service) -> Service:
        if service.name.startswith("engine-"):
            return _with(service, lambda command: _engine(command, simulation))
        if service.name == "trainer":
            return _with(service, lambda command: _trainer(command, simulation))
        if service.name.startswith("rollout-"):
            limit = {"SLUICE_MAX_GROUPS_IN_FLIGHT": str(simulation.groups_in_flight)}
            return _with(service, lambda command: replace(command, environment=command.environment | limit))
        return service

    return change


def _with(service: Service, change: Callable[[Command], Command]) -> Service:
    return replace(service, commands=tuple(map(change, service.commands)))


def _engine(command: Command, simulation: Simulation) -> Command:
    python, _, _, *flags = command.argv
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    argv = (
        *(python, "-m", "bench.simulated.engine"),
        *("--model", given["--model"], "--host", given["--host"], "--port", given["--port"]),
        *("--latency", simulation.latency, "--keep-rate", str(simulation.keep_rate)),
        *("--pace", str(simulation.pace), "--concurrency", str(simulation.concurrency)),
    )
    return replace(command, argv=argv)


def _trainer(command: Command, simulation: Simulation) -> Command:
    return replace(command, argv=(command.argv[0], "-m", "bench.simulated.trainer", "--train", simulation.train))
