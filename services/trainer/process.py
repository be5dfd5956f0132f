"""One rank as a process: allocator and threads set, ranks joined, NATS connected, one run served, an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from services.trainer.bus import NatsThread
from services.trainer.config import TrainerSettings
from services.trainer.memory import keep_freed_memory
from services.trainer.session import Session
from services.trainer.zero import join_ranks, rank_device
from sluice.errors import ConfigError, FencedError, RunFailedError, SluiceError
from sluice.telemetry import Logger, instance_name, serve_metrics
from sluice.transport.nats import Bus

EXIT_FAILED, EXIT_CONFIG, EXIT_FENCED, EXIT_RUN_FAILED = 1, 2, 3, 4


def run_rank(settings: TrainerSettings, log: Logger) -> int:
    """Serve one run as one rank; returns the exit code."""
    nats = NatsThread(log, settings.nats_deadline_seconds)
    try:
        connecting = Bus.connect(settings.nats_url, instance_name("trainer"), settings.nats_deadline_seconds)
        bus = nats.call(connecting, "nats")
        with _metrics_served(settings, bus, log):
            _session(settings, nats, bus, log).run()
        nats.call(bus.close(), "nats")
        log.info("run_finished")
        return 0
    except SluiceError as error:
        log.error("trainer_failed", kind=type(error).__name__, error=str(error))
        return exit_code(error)
    finally:
        nats.close()


def exit_code(error: SluiceError) -> int:
    """What a supervisor learns from how the process ended."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case FencedError():
            return EXIT_FENCED
        case RunFailedError():
            return EXIT_RUN_FAILED
        case _:
            return EXIT_FAILED


@contextmanager
def _metrics_served(settings: TrainerSettings, bus: Bus, log: Logger) -> Iterator[None]:
    """Rank 0 speaks for all ranks."""
    if settings.rank:
        yield
        return
    server = serve_metrics(settings.metrics_port, settings.metrics_host, lambda: bool(bus.nc.is_connected))
    log.info("metrics_served", port=server.port)
    try:
        yield
    finally:
        server.close()


def _session(settings: TrainerSettings, nats: NatsThread, bus: Bus, log: Logger) -> Session:
    on_gpu = torch.cuda.is_available() if settings.device == "auto" else settings.device == "cuda"
    if not on_gpu:
        torch.set_num_threads(settings.threads)
        keep_freed_memory()
    ranks = join_ranks(settings.rank, settings.world_size, on_gpu, settings.collective_seconds)
    return Session(settings, nats, bus, ranks, rank_device(on_gpu, settings.local_rank), log)
