"""One rank as a process: allocator and threads set, NATS connected, ranks joined, one run served or replayed."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from services.trainer import metrics
from services.trainer.bus import NatsThread
from services.trainer.config import TrainerSettings
from services.trainer.memory import keep_freed_memory
from services.trainer.replay.report import report
from services.trainer.replay.training import replay
from services.trainer.session import Session
from services.trainer.wiring import Parts
from services.trainer.zero import join_ranks, rank_device
from sluice.errors import ConfigError, FencedError, RunFailedError, SluiceError, TransientError
from sluice.run_series import watch_disk
from sluice.service import say_why
from sluice.storage import disk_fault
from sluice.telemetry import Logger, instance_name, serve_metrics
from sluice.transport.nats import Bus

EXIT_FAILED, EXIT_CONFIG, EXIT_FENCED, EXIT_RUN_FAILED = 1, 2, 3, 4


def run_rank(settings: TrainerSettings, on_gpu: bool, log: Logger) -> int:
    """Serve one run as one rank; returns the exit code."""

    def serve(nats: NatsThread, bus: Bus) -> int:
        joined = threading.Event()
        with _metrics_served(settings, lambda: joined.is_set() and bus.nc.is_connected, log):
            parts = _join(settings, on_gpu, nats, bus)
            joined.set()
            Session(settings, parts, log).run()
        log.info("run_finished")
        return 0

    return _connected(settings, serve, log)


def run_replay(settings: TrainerSettings, on_gpu: bool, chosen: argparse.Namespace, log: Logger) -> int:
    """Replay a run as one rank, as its arguments ask; returns the exit code."""

    def work(nats: NatsThread, bus: Bus) -> int:
        parts = _join(settings, on_gpu, nats, bus)
        found = replay(parts, settings, chosen.run, chosen.start, log)
        return report(found, chosen) if parts.ranks.first else 0

    return _connected(settings, work, log)


def _connected(settings: TrainerSettings, work: Callable[[NatsThread, Bus], int], log: Logger) -> int:
    """The exit code of `work`, or of what ended it."""
    nats = NatsThread(log, settings.nats_deadline_seconds)
    try:
        connecting = Bus.connect(settings.nats_url, instance_name("trainer"), settings.nats_deadline_seconds)
        bus = nats.call(connecting, "nats")
        code = work(nats, bus)
        nats.call(bus.close(), "nats")
        return code
    except SluiceError as error:
        log.error("trainer_failed", kind=type(error).__name__, error=str(error))
        return say_why("trainer", str(error), exit_code(error))
    except OSError as error:
        refused = disk_fault(error)
        if refused is None:
            raise
        log.error("disk_refused", error=refused)
        return say_why("trainer", f"SLUICE_DATA_DIR={settings.data_dir}: {refused}", EXIT_CONFIG)
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
def _metrics_served(settings: TrainerSettings, ready: Callable[[], bool], log: Logger) -> Iterator[None]:
    """The first rank of each host answers probes, and rank 0 speaks for all; ready once they have found one another."""
    if settings.local_rank:
        yield
        return
    for name, folder in (("weights", settings.weights_dir), ("checkpoints", settings.checkpoints_dir)):
        watch_disk(metrics.DISK_FREE.labels(name), metrics.DISK_SIZE.labels(name), folder)
    server = serve_metrics(settings.metrics_port, settings.metrics_host, ready)
    log.info("metrics_served", port=server.port)
    try:
        yield
    finally:
        server.close()


def _join(settings: TrainerSettings, on_gpu: bool, nats: NatsThread, bus: Bus) -> Parts:
    if not on_gpu:
        torch.set_num_threads(settings.threads)
        keep_freed_memory()
    try:
        ranks = join_ranks(settings.rank, settings.world_size, on_gpu, settings.collective_seconds)
    except torch.distributed.DistError as error:
        raise _not_joined(settings, error) from None
    return Parts(nats, bus, ranks, rank_device(on_gpu, settings.local_rank))


def _not_joined(settings: TrainerSettings, error: torch.distributed.DistError) -> SluiceError:
    """A taken port is for a person to mend; ranks that did not come may come at the next start."""
    address = f"MASTER_ADDR={settings.master_addr}, MASTER_PORT={settings.master_port}"
    if "EADDRINUSE" in str(error):
        return ConfigError(f"{address}: the port is in use; choose another, or leave it to torchrun")
    return TransientError(f"{address}: the {settings.world_size} ranks did not find one another: {error}")
