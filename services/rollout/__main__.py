"""`python -m services.rollout`: read the environment, wire the parts, serve until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import nats

from services.rollout import metrics
from services.rollout.config import WorkerConfig
from services.rollout.engine import Engine
from services.rollout.engine_process import EngineProcess
from services.rollout.loop import Settings, Worker
from services.rollout.presence import LiveStatus
from services.rollout.run import RunFinder
from sluice.cancellation import end_tasks, run_and_end_all
from sluice.run_series import watch_disk
from sluice.service import calm_collector, run_service
from sluice.storage import check_writable
from sluice.telemetry import configure_logging, get_logger, instance_name, serve_metrics
from sluice.transport.nats import Bus


def main() -> int:
    """Run a worker; the exit code is 2 for a fault of configuration and 1 for any other failure."""
    return run_service("rollout", _start, failures=(TimeoutError, nats.errors.Error))


def _start() -> int:
    config = WorkerConfig.from_environment(os.environ)
    configure_logging(config.log_level, service="rollout")
    check_writable(config.cache_dir, "SLUICE_CACHE_DIR")
    calm_collector()
    run_and_end_all(_run(config))
    return 0


async def _run(config: WorkerConfig) -> None:
    name = config.worker_name or re.sub(r"[^A-Za-z0-9_-]", "-", instance_name("rollout"))
    log = get_logger("rollout").bind(worker=name)
    bus = await Bus.connect(config.nats_url, name, config.nats_deadline_seconds)
    watch_disk(metrics.DISK_FREE, metrics.DISK_SIZE, config.cache_dir)
    await bus.ensure_streams()
    stop = asyncio.Event()  # until here there is nothing to hand back, and a signal may end the process as it is
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    engine = Engine(config.engine_url, config.engine_api_key, config.engine_admin_api_key)
    live = LiveStatus(config.redis_url)
    worker = Worker(RunFinder(bus, name, log), engine, live, _settings(config))
    probes = serve_metrics(config.metrics_port, config.metrics_host, lambda: bus.nc.is_connected and not stop.is_set())
    log.info("worker_started", engine=config.engine_url, metrics_port=probes.port)
    try:
        if config.engine_command:
            await _serve_with_engine(worker, EngineProcess(config.engine_command, log), stop)
        else:
            await worker.serve(stop)
    finally:
        await engine.close()
        await live.close()
        await bus.close()
        probes.close()
    log.info("worker_stopped")


async def _serve_with_engine(worker: Worker, process: EngineProcess, stop: asyncio.Event) -> None:
    """The engine outlives the worker's last group, and goes with it."""
    supervising = asyncio.create_task(process.supervise(), name="engine")
    supervising.add_done_callback(lambda _: stop.set())  # it ends by itself only when it cannot start at all
    try:
        await worker.serve(stop)
    finally:
        faults = await end_tasks([supervising])
    if faults:
        raise faults[0]


def _settings(config: WorkerConfig) -> Settings:
    """One worker an engine: the engine's address names the worker's own cache, also after a restart."""
    own = re.sub(r"[^A-Za-z0-9]+", "-", config.engine_url)
    return Settings(
        reward_addresses=config.reward_addresses,
        cache=Path(os.path.abspath(config.cache_dir / own)),
        max_groups_in_flight=config.max_groups_in_flight,
        drain_seconds=config.drain_seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
