"""Where things are, for the trainer: from the environment, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.environment import Address, LogLevel, NatsUrl, read_settings

ENVIRONMENT = {
    "nats_url": "SLUICE_NATS_URL",
    "nats_deadline_seconds": "SLUICE_NATS_DEADLINE_SECONDS",
    "data_dir": "SLUICE_DATA_DIR",
    "lease_seconds": "SLUICE_LEASE_SECONDS",
    "metrics_host": "SLUICE_METRICS_HOST",
    "metrics_port": "SLUICE_METRICS_PORT",
    "log_level": "SLUICE_LOG_LEVEL",
    "allow_remote_code": "SLUICE_ALLOW_REMOTE_CODE",
    "device": "SLUICE_TRAINER_DEVICE",
    "threads": "SLUICE_TRAINER_THREADS",
    "collective_seconds": "SLUICE_TRAINER_COLLECTIVE_SECONDS",
    "weights_bind": "SLUICE_WEIGHTS_BIND",
    "weights_advertise": "SLUICE_WEIGHTS_ADVERTISE",
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
URLS = ("nats_url",)


class TrainerSettings(BaseModel):
    """Deployment settings of one rank; `ENVIRONMENT` names the variable of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nats_url: NatsUrl = Field("nats://127.0.0.1:4222", description="NATS server with JetStream.")
    nats_deadline_seconds: float = Field(60, gt=0, description="Longest time until NATS has answered.")
    data_dir: Path = Field(
        Path("artifacts/data"),
        description="Weights and checkpoints, seen by all ranks; coordinator: files of evaluations.",
    )
    lease_seconds: float = Field(10, ge=1, description="A silent holder loses its lease after this long.")
    metrics_host: str = Field("127.0.0.1", description="Address of /metrics, /healthz and /readyz.")
    metrics_port: int = Field(0, ge=0, le=65535, description="Their port; 0 takes a free one.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged.")
    allow_remote_code: bool = Field(False, description="Allow runs to ask for model.trust_remote_code.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: a GPU when there is one.")
    threads: int = Field(1, ge=1, description="Torch threads of a rank on a CPU; never more than free cores.")
    collective_seconds: float = Field(1800, gt=0, description="Longest time that ranks wait for one another.")
    weights_bind: Address = Field("127.0.0.1:50061", description="Where weights are served over gRPC.")
    weights_advertise: Address | None = Field(None, description="How workers reach that; unset: as bound.")
    rank: int = Field(0, ge=0, description="This process among all ranks; torchrun sets it.")
    world_size: int = Field(1, ge=1, description="Number of ranks.")
    local_rank: int = Field(0, ge=0, description="This process among the ranks of its host: names its GPU.")
    master_addr: str = Field("127.0.0.1", description="Host of rank 0.")
    master_port: int = Field(29500, ge=1, le=65535, description="Port on which rank 0 gathers the others.")

    @model_validator(mode="after")
    def _check_rank(self) -> Self:
        if self.rank >= self.world_size:
            raise ValueError(f"RANK={self.rank} must be below WORLD_SIZE={self.world_size}")
        return self

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables that are set.

        Raises:
            ConfigError: one line `NAME=value: what is wrong`.
        """
        return read_settings(cls, ENVIRONMENT, environ, urls=URLS)

    @property
    def weights_dir(self) -> Path:
        return self.data_dir.resolve() / "weights"

    @property
    def checkpoints_dir(self) -> Path:
        return self.data_dir.resolve() / "checkpoints"
