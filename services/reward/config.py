"""Settings of the deployment, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from services.reward.pool import PoolSettings
from services.reward.process import WorkerLimits
from sluice.errors import ConfigError


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
    """Field `x` is read from the variable in its alias."""

    model_config = ConfigDict(frozen=True)

    bind: str = Field("127.0.0.1:50051", alias="SLUICE_REWARD_BIND", pattern=r"^.+:\d+$")
    """host:port of the gRPC server; port 0 takes a free one."""
    metrics_host: str = Field("127.0.0.1", alias="SLUICE_METRICS_HOST")
    metrics_port: int = Field(0, alias="SLUICE_METRICS_PORT", ge=0, le=65535)
    log_level: str = Field("info", alias="SLUICE_LOG_LEVEL", pattern="^(debug|info|warning|error)$")
    workers: int = Field(default_factory=lambda: os.cpu_count() or 1, alias="SLUICE_REWARD_WORKERS", ge=1, le=256)
    timeout_seconds: float = Field(5.0, alias="SLUICE_REWARD_TIMEOUT_SECONDS", gt=0, allow_inf_nan=False)
    """Time limit of one check."""
    memory_bytes: int = Field(2 << 30, alias="SLUICE_REWARD_MEMORY_BYTES", ge=64 << 20)
    """Address space of one worker process."""
    start_seconds: float = Field(60.0, alias="SLUICE_REWARD_START_SECONDS", gt=0, allow_inf_nan=False)
    """Time a worker process may take to load its verifiers."""
    stop_seconds: float = Field(10.0, alias="SLUICE_REWARD_STOP_SECONDS", ge=0, allow_inf_nan=False)
    """Time that open calls get after SIGTERM."""
    max_pending: int = Field(20_000, alias="SLUICE_REWARD_MAX_PENDING", ge=256)
    """Items that may wait or run; more are refused, and callers try another replica."""
    verifiers: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field((), alias="SLUICE_REWARD_VERIFIERS")
    """Allow-list of users' verifiers: name=module:function, separated by commas."""
    routes: Annotated[dict[str, str], BeforeValidator(_pairs)] = Field({}, alias="SLUICE_REWARD_ROUTES")
    """Data sources to verifiers: data_source=verifier, separated by commas; a trailing * stands for any rest."""

    @property
    def pool(self) -> PoolSettings:
        limits = WorkerLimits(self.memory_bytes, self.start_seconds, self.verifiers)
        return PoolSettings(self.workers, self.timeout_seconds, self.max_pending, limits)


def read_settings(environment: Mapping[str, str]) -> RewardSettings:
    """The settings that `environment` gives; empty variables count as not set.

    Raises:
        ConfigError: a value is out of its range; the text names variable, value and rule.
    """
    given = {name: value for name, value in environment.items() if value}
    try:
        return RewardSettings.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(f"{fault['loc'][0]}={fault['input']!r}: {fault['msg']}") from None
