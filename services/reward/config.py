"""Where things are, for the reward service: from the environment, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from services.reward.pool import PoolSettings
from services.reward.verifiers.sandbox import require_sandbox
from services.reward.worker import WorkerLimits
from sluice.environment import Address, LogLevel, RedisUrl, read_settings

ENVIRONMENT = {
    "bind": "SLUICE_REWARD_BIND",
    "metrics_host": "SLUICE_METRICS_HOST",
    "metrics_port": "SLUICE_METRICS_PORT",
    "log_level": "SLUICE_LOG_LEVEL",
    "workers": "SLUICE_REWARD_WORKERS",
    "timeout_seconds": "SLUICE_REWARD_TIMEOUT_SECONDS",
    "memory_bytes": "SLUICE_REWARD_MEMORY_BYTES",
    "start_seconds": "SLUICE_REWARD_START_SECONDS",
    "stop_seconds": "SLUICE_REWARD_STOP_SECONDS",
    "max_pending": "SLUICE_REWARD_MAX_PENDING",
    "verifiers": "SLUICE_REWARD_VERIFIERS",
    "routes": "SLUICE_REWARD_ROUTES",
    "code": "SLUICE_REWARD_CODE",
    "redis_url": "SLUICE_REDIS_URL",
    "second": "SLUICE_REWARD_SECOND",
    "second_share": "SLUICE_REWARD_SECOND_SHARE",
}


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _pairs(value: object) -> object:
    """`a=b,c=d` as a mapping. A data source may hold an equals sign, the name of a verifier may not."""
    if not isinstance(value, str):
        return value
    entries = [part.strip().rpartition("=") for part in value.split(",") if part.strip()]
    wrong = [name for source, _, name in entries if not source]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not of the form data_source=verifier")
    return {source: name for source, _, name in entries}


class RewardSettings(BaseModel):
    """Deployment settings; `ENVIRONMENT` names the variable of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bind: Address = Field("127.0.0.1:50051", description="host:port of the gRPC server; port 0 takes a free one.")
    metrics_host: str = Field("127.0.0.1", description="Address of /metrics, /healthz and /readyz.")
    metrics_port: int = Field(0, ge=0, le=65535, description="Their port; 0 takes a free one.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged.")
    workers: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, le=256, description="Worker processes of one replica."
    )
    timeout_seconds: float = Field(5.0, gt=0, allow_inf_nan=False, description="Time limit of one check.")
    memory_bytes: int = Field(2 << 30, ge=64 << 20, description="Address space of one worker process.")
    start_seconds: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="Time a worker process may take to load its verifiers."
    )
    stop_seconds: float = Field(10.0, ge=0, allow_inf_nan=False, description="Time that open calls get after SIGTERM.")
    max_pending: int = Field(
        20_000, ge=256, description="Items that may wait or run; more are refused, and callers try another replica."
    )
    verifiers: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (),
        description="Allow-list of users' verifiers, separated by commas: name=module:function, or the name of an "
        "entry point of the group `sluice.verifiers`.",
    )
    routes: Annotated[dict[str, str], BeforeValidator(_pairs)] = Field(
        {},
        description="Data sources to verifiers: data_source=verifier, separated by commas; a trailing * stands for any "
        "rest.",
    )
    code: str = Field(
        "",
        description="Enables the verifier `code`, which runs what models write, in this sandbox: `bubblewrap`, or the "
        "path of that program. The service does not start when it does not confine.",
    )
    redis_url: RedisUrl | None = Field(
        None, description="Redis-protocol server that keeps verdicts by content; unset: no cache. It may vanish."
    )
    second: str = Field("", description="Verifier that judges a sample of the groups too, for the agreement metric.")
    second_share: float = Field(0.01, ge=0, le=1, description="Share of the groups that SLUICE_REWARD_SECOND judges.")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables that are set.

        Raises:
            ConfigError: one line `NAME=value: what is wrong`.
        """
        return read_settings(cls, ENVIRONMENT, environ, urls=("redis_url",))

    @property
    def pool(self) -> PoolSettings:
        """Raises: ConfigError: `code` is enabled and there is no sandbox that confines."""
        sandbox = require_sandbox(self.code) if self.code else ""
        limits = WorkerLimits(self.memory_bytes, self.start_seconds, self.verifiers, sandbox)
        return PoolSettings(self.workers, self.timeout_seconds, self.max_pending, limits)
