"""One rank of DeepSpeed in the test's own process: joined once, shared by all tests of this folder."""

from __future__ import annotations

import os

import pytest
import torch

from services.trainer.ranks import Ranks
from services.trainer.zero import join_ranks
from tests.servers import free_port


@pytest.fixture(scope="session")
def one_rank() -> Ranks:
    torch.set_num_threads(1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ.update({**address, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    return join_ranks(0, 1, on_gpu=False, seconds=60)
