"""One rank of DeepSpeed in the test's own process: joined once, shared by all tests of this folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from services.trainer.config import TrainerSettings
from services.trainer.memory import keep_freed_memory
from services.trainer.ranks import Ranks
from services.trainer.zero import join_ranks
from tests.servers import free_port


@pytest.fixture(scope="session")
def one_rank() -> Ranks:
    torch.set_num_threads(1)
    keep_freed_memory()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ.update({**address, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    return join_ranks(0, 1, on_gpu=False, seconds=60)


@pytest.fixture
def settings(nats_url: str, tmp_path: Path) -> TrainerSettings:
    return TrainerSettings(nats_url=nats_url, nats_deadline_seconds=10, data_dir=tmp_path / "data", lease_seconds=1)
