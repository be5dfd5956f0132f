"""What people see of a run while its holder reads the data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.coordinator.board import StatusBoard
from services.coordinator.metrics import CoordinatorMetrics
from services.coordinator.run import Run
from services.coordinator.written import Written
from sluice.data import load_prompts, manifest_of
from sluice.telemetry import get_logger
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.types import RunCreated, RunState, StateChange
from tests.coordinator.stage import spec
from tests.servers import valkey

pytestmark = pytest.mark.usefixtures("tiny_model")


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with valkey(tmp_path) as url:
        yield url


async def test_a_run_whose_data_is_being_read_says_so_and_how_far_that_is(bus: Bus, redis_url: str) -> None:
    chosen = spec()
    manifest = json.dumps(manifest_of(chosen, load_prompts(chosen)))
    ledger = ledger_log(bus, "run-a")
    await ledger.append(RunCreated("run-a", chosen.canonical_json, chosen.config_hash, manifest))
    await ledger.append(StateChange(RunState.QUEUED, "created"))
    board, log = StatusBoard(redis_url, get_logger("test")), get_logger("test")
    run = Run(bus, "run-a", board, log, CoordinatorMetrics(), Written())
    await run.claim("test")
    await run.rebuild()
    shown = await board.read("run-a")
    await board.close()
    assert shown is not None
    (wait,) = shown.waits
    assert (wait.name, wait.waits_for.endswith("of 100 rows")) == ("data", True)
    assert run.supply.wait().waits_for == "loading data: 100 of 100 rows"
