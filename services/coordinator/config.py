"""Where things are, for the coordinator: from the environment, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sluice.environment import Address, LogLevel, NatsUrl, RedisUrl, addresses, read_settings

ENVIRONMENT = {
    "nats_url": "SLUICE_NATS_URL",
    "nats_deadline_seconds": "SLUICE_NATS_DEADLINE_SECONDS",
    "redis_url": "SLUICE_REDIS_URL",
    "data_dir": "SLUICE_DATA_DIR",
    "api_host": "SLUICE_API_HOST",
    "api_port": "SLUICE_API_PORT",
    "api_token": "SLUICE_API_TOKEN",
    "lease_seconds": "SLUICE_LEASE_SECONDS",
    "stream_replicas": "SLUICE_STREAM_REPLICAS",
    "rollouts_bytes": "SLUICE_ROLLOUTS_BYTES",
    "groups_bytes": "SLUICE_GROUPS_BYTES",
    "allow_remote_code": "SLUICE_ALLOW_REMOTE_CODE",
    "reward_addresses": "SLUICE_REWARD_ADDRESSES",
    "truth_check_seconds": "SLUICE_TRUTH_CHECK_SECONDS",
    "log_level": "SLUICE_LOG_LEVEL",
}
SECRETS, URLS = ("api_token",), ("nats_url", "redis_url")


class CoordinatorConfig(BaseModel):
    """Deployment settings; `ENVIRONMENT` names the variable of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nats_url: NatsUrl = Field("nats://127.0.0.1:4222", description="NATS server with JetStream.")
    nats_deadline_seconds: float = Field(60, gt=0, description="Longest time until NATS has stored a message.")
    redis_url: RedisUrl = Field(
        "redis://127.0.0.1:6379/0", description="Redis-protocol server for live status; may vanish."
    )
    data_dir: Path | None = Field(
        None, description="Folder for the files of evaluations inside runs; unset: none are written, the API has them."
    )
    api_host: str = Field("127.0.0.1", description="Address of the REST API; others than loopback need a token.")
    api_port: int = Field(8080, ge=0, le=65535, description="Port of the REST API.")
    api_token: str | None = Field(None, min_length=1, description="Bearer token that callers must present.")
    lease_seconds: float = Field(10, ge=1, description="A silent holder loses its lease after this long.")
    stream_replicas: int = Field(1, ge=1, le=5, description="JetStream replicas of each stream.")
    rollouts_bytes: int = Field(8 << 30, ge=1 << 20, description="Room of the ROLLOUTS stream.")
    groups_bytes: int = Field(1 << 30, ge=1 << 16, description="Room of the GROUPS stream.")
    allow_remote_code: bool = Field(False, description="Allow runs to ask for model.trust_remote_code.")
    reward_addresses: Annotated[tuple[Address, ...], BeforeValidator(addresses)] = Field(
        (), description="host:port of each reward replica, for the check of ground truths; unset: none is made."
    )
    truth_check_seconds: float = Field(
        120, gt=0, description="Longest time to check the ground truths of a new run's data."
    )
    log_level: LogLevel = Field("info", description="Lowest level that is logged.")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables that are set.

        Raises:
            ConfigError: one line `NAME=value: what is wrong`.
        """
        return read_settings(cls, ENVIRONMENT, environ, secrets=SECRETS, urls=URLS)

    @property
    def evaluations_dir(self) -> Path | None:
        return None if self.data_dir is None else self.data_dir.resolve() / "evaluations"
