"""Where things are, for a rollout worker: from the environment, checked before anything starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sluice.environment import Address, LogLevel, NatsUrl, RedisUrl, addresses, read_settings

ENVIRONMENT = {
    "nats_url": "SLUICE_NATS_URL",
    "nats_deadline_seconds": "SLUICE_NATS_DEADLINE_SECONDS",
    "redis_url": "SLUICE_REDIS_URL",
    "engine_url": "SLUICE_ENGINE_URL",
    "engine_api_key": "SLUICE_ENGINE_API_KEY",
    "engine_admin_api_key": "SLUICE_ENGINE_ADMIN_API_KEY",
    "engine_command": "SLUICE_ENGINE_COMMAND",
    "reward_addresses": "SLUICE_REWARD_ADDRESSES",
    "cache_dir": "SLUICE_CACHE_DIR",
    "max_groups_in_flight": "SLUICE_MAX_GROUPS_IN_FLIGHT",
    "drain_seconds": "SLUICE_DRAIN_SECONDS",
    "worker_name": "SLUICE_WORKER_NAME",
    "metrics_host": "SLUICE_METRICS_HOST",
    "metrics_port": "SLUICE_METRICS_PORT",
    "log_level": "SLUICE_LOG_LEVEL",
}
SECRETS, URLS = ("engine_api_key", "engine_admin_api_key"), ("nats_url", "redis_url")


def _words(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


def _engine_url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/ ]+", value):
        raise ValueError("must be of the form http://HOST:PORT, without a path")
    return value


class WorkerConfig(BaseModel):
    """Deployment settings; `ENVIRONMENT` names the variable of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nats_url: NatsUrl = Field("nats://127.0.0.1:4222", description="NATS server with JetStream.")
    nats_deadline_seconds: float = Field(60, gt=0, description="Longest time until NATS has stored a message.")
    redis_url: RedisUrl = Field(
        "redis://127.0.0.1:6379/0", description="Redis-protocol server for live status; may vanish."
    )
    engine_url: Annotated[str, AfterValidator(_engine_url)] = Field(
        "http://127.0.0.1:30000", description="The engine: SGLang, or the CPU engine."
    )
    engine_api_key: str | None = Field(None, min_length=1, description="The engine's --api-key.")
    engine_admin_api_key: str | None = Field(None, min_length=1, description="The engine's --admin-api-key.")
    engine_command: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        (), description="Command line that serves at engine_url: started, restarted and stopped with the worker."
    )
    reward_addresses: Annotated[tuple[Address, ...], BeforeValidator(addresses)] = Field(
        ("127.0.0.1:50051",), min_length=1, description="host:port of each reward replica, separated by commas."
    )
    cache_dir: Path = Field(
        Path("artifacts/cache"), description="Folder of this worker alone for weights that arrive over gRPC."
    )
    max_groups_in_flight: int = Field(64, ge=1, le=4096, description="Groups that the engine works on at once.")
    drain_seconds: float = Field(30, ge=0, description="Time that groups in flight get after SIGTERM.")
    worker_name: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_-]{1,100}$", description="Name of this worker; default: host and process id."
    )
    metrics_host: str = Field("127.0.0.1", description="Address of metrics and probes.")
    metrics_port: int = Field(0, ge=0, le=65535, description="Port of metrics and probes; 0 takes a free one.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged.")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables that are set.

        Raises:
            ConfigError: one line `NAME=value: what is wrong`.
        """
        return read_settings(cls, ENVIRONMENT, environ, secrets=SECRETS, urls=URLS)
