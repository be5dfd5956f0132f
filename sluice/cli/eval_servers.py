"""The servers that `sluice eval` starts for itself: the reward service, and the CPU engine unless others were named."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.local.ports import LOOPBACK, free_ports
from sluice.local.services import Command, HttpHealth, Service, TcpHealth
from sluice.local.stack import SAMPLES_DECODED_TOGETHER, TORCH_ENVIRONMENT
from sluice.local.supervisor import Change, Notice, Supervisor

ENGINE_START_SECONDS = 600.0
"""A large model is read from a slow disk."""
DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class Servers:
    """What runs: `supervisor.during` does the work and ends it when one of them cannot be kept alive."""

    supervisor: Supervisor
    reward_address: str
    engine_url: str | None


@asynccontextmanager
async def own_servers(checkpoint: Path | None, weight_version: str, logs: Path) -> AsyncIterator[Servers]:
    """Start the reward service, and an engine that serves `checkpoint` if there is one; end them in every case.

    Args:
        weight_version: what that engine calls its weights, after a restart too.

    Raises:
        ConfigError: one refused its configuration; its own line.
        StackError: one did not come up; names its log.
    """
    reward, probes, engine = free_ports(3)
    services = [_reward(reward, probes)]
    if checkpoint is not None:
        services.append(_engine(checkpoint, weight_version, engine))
    supervisor = Supervisor(services, logs, _report)
    try:
        await supervisor.start()
        url = f"http://{LOOPBACK}:{engine}" if checkpoint is not None else None
        yield Servers(supervisor, f"{LOOPBACK}:{reward}", url)
    finally:
        await supervisor.stop()


def _report(notice: Notice) -> None:
    if notice.change is Change.ENDED:
        print(f"{notice.service}: {notice.detail}", file=sys.stderr, flush=True)


def _reward(port: int, probes: int) -> Service:
    environment = {
        "SLUICE_REWARD_BIND": f"{LOOPBACK}:{port}",
        "SLUICE_METRICS_HOST": LOOPBACK,
        "SLUICE_METRICS_PORT": str(probes),
    }
    command = Command("reward", (sys.executable, "-m", "services.reward"), environment)
    return Service("reward", (command,), (HttpHealth(probes, "/readyz"), TcpHealth(port)), start_seconds=120.0)


def _engine(checkpoint: Path, weight_version: str, port: int) -> Service:
    flags = {
        "model": str(checkpoint),
        "dtype": _dtype(checkpoint),
        "weight-version": weight_version,
        "host": LOOPBACK,
        "port": str(port),
        "max-running-requests": str(SAMPLES_DECODED_TOGETHER),
    }
    argv = [sys.executable, "-m", "services.engine", *(part for f, v in flags.items() for part in (f"--{f}", v))]
    # Keys of servers elsewhere are not for this one, which only this machine can reach.
    environment = TORCH_ENVIRONMENT | {"ENGINE_API_KEY": "", "ENGINE_ADMIN_API_KEY": ""}
    command = Command("engine", tuple(argv), environment)
    return Service("engine", (command,), (HttpHealth(port, "/health"),), start_seconds=ENGINE_START_SECONDS)


def _dtype(checkpoint: Path) -> str:
    """As the checkpoint says, which is how it was trained or published; float32 for what the engine does not do."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    dtype = config.get("dtype") or config.get("torch_dtype")
    return dtype if dtype in DTYPES else "float32"
