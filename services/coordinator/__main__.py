"""`python -m services.coordinator`: the runs API, and the loop of every run that this process holds."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import uvicorn

from services.coordinator.api.access import check_host
from services.coordinator.api.app import create_app
from services.coordinator.around import Around, NatsWatch
from services.coordinator.board import StatusBoard
from services.coordinator.config import CoordinatorConfig
from services.coordinator.deletion import sweep_for_ever
from services.coordinator.directory import Directory
from services.coordinator.host import RunHost
from services.coordinator.metrics import CoordinatorMetrics
from services.coordinator.runs import RunReader
from services.coordinator.streams import watch_streams
from services.coordinator.truths import TruthCheck
from sluice.cancellation import end_tasks, run_and_end_all
from sluice.errors import ConfigError, SluiceError
from sluice.listening import plain
from sluice.service import calm_collector, run_service
from sluice.telemetry import configure_logging, get_logger
from sluice.transport.nats import Bus
from sluice.transport.streams import StreamLimits


async def serve(config: CoordinatorConfig) -> None:
    """Wire the parts and serve until SIGTERM or SIGINT, or until a part fails."""
    listening = bind(config)
    bus = await Bus.connect(config.nats_url, "coordinator", config.nats_deadline_seconds)
    rooms = {"rollouts_bytes": config.rollouts_bytes, "groups_bytes": config.groups_bytes}
    await bus.ensure_streams(StreamLimits(**rooms, replicas=config.stream_replicas))
    board = StatusBoard(config.redis_url, get_logger("coordinator"))
    metrics, watch = CoordinatorMetrics(), NatsWatch()
    metrics.watch(watch.silent_seconds, board.away_seconds)
    runs = RunReader(bus)
    host = RunHost(bus, runs, board, config, metrics)
    truths = TruthCheck(config.reward_addresses, config.truth_check_seconds)
    directory = Directory(bus, runs, board, Around(watch, board), truths, config)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(directory, config.api_token),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=3,
        )
    )
    api, stop = asyncio.create_task(server.serve(sockets=[listening])), asyncio.create_task(_stop_signal())
    sweeping = sweep_for_ever(bus, config.evaluations_dir, get_logger("coordinator"))
    loops = [asyncio.create_task(loop) for loop in (host.serve(), watch_streams(bus, metrics, watch), sweeping)]
    try:
        first, _ = await asyncio.wait({api, stop, *loops}, return_when=asyncio.FIRST_COMPLETED)
        if stop not in first:
            await first.pop()  # raises what broke it
            raise SluiceError("the API server ended by itself; its lines above say why")
    finally:
        server.should_exit = True
        await end_tasks(loops)
        await asyncio.gather(api, return_exceptions=True)
        await board.close()
        await bus.close()


def bind(config: CoordinatorConfig) -> socket.socket:
    """The API's port, taken before anything else starts. Raises: ConfigError: it is in use, or not ours to take."""
    family = socket.AF_INET6 if ":" in config.api_host else socket.AF_INET
    try:
        return socket.create_server((config.api_host, config.api_port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"SLUICE_API_PORT={config.api_port} on SLUICE_API_HOST={config.api_host}: {plain(error)}; choose another"
        ) from None


async def _stop_signal() -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def _run() -> int:
    config = CoordinatorConfig.from_environment(os.environ)
    check_host(config.api_host, config.api_token)
    configure_logging(config.log_level, service="coordinator")
    calm_collector()
    run_and_end_all(serve(config))
    return 0


def main() -> int:
    """Run a coordinator; the exit code is 2 for a fault of configuration and 1 for any other failure."""
    return run_service("coordinator", _run)


if __name__ == "__main__":
    sys.exit(main())
