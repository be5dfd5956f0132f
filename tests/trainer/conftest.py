"""One rank of DeepSpeed in the test's own process: joined once, shared by all tests of this folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.config import TrainerSettings
from services.trainer.memory import keep_freed_memory
from services.trainer.ranks import Ranks
from services.trainer.zero import join_ranks
from tests.servers import free_port
from tests.trainer import several_ranks, slicing
from tests.trainer.real_shapes import save_few_words, save_one_layer


@pytest.fixture(scope="session")
def one_rank() -> Ranks:
    torch.set_num_threads(1)
    keep_freed_memory()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ.update({**address, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    return join_ranks(0, 1, on_gpu=False, seconds=60)


@pytest.fixture(scope="session")
def two_ranks(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """What two ranks of DeepSpeed make of the updates of `several_groups`, and the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp("two-ranks")
    return several_ranks.run("sharded", 2, tiny_model, folder), folder


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the widths of SmolLM2."""
    return save_one_layer(tmp_path_factory.mktemp("one-layer"))


@pytest.fixture(scope="session")
def few_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with nine heads, of which no two ranks get as many."""
    return save_few_words(tmp_path_factory.mktemp("few-words"))


@pytest.fixture(scope="session")
def four_ranks(tiny_model: Path, few_words: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What four ranks found, started once."""
    variables = {slicing.WIDE_MODEL: str(few_words)}
    found: dict[str, Any] = several_ranks.run("four", 4, tiny_model, tmp_path_factory.mktemp("four"), **variables)
    return found


@pytest.fixture
def settings(nats_url: str, tmp_path: Path) -> TrainerSettings:
    return TrainerSettings(nats_url=nats_url, nats_deadline_seconds=10, data_dir=tmp_path / "data", lease_seconds=1)
