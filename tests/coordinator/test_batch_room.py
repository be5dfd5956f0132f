"""A BATCH record is one message: a run whose batch cannot be one is refused before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.coordinator.around import Around, NatsWatch
from services.coordinator.board import StatusBoard
from services.coordinator.config import CoordinatorConfig
from services.coordinator.directory import Directory
from services.coordinator.rules import DROPS_PER_GROUP, batch_room
from services.coordinator.runs import RunReader
from services.coordinator.truths import TruthCheck
from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.errors import ConfigError
from sluice.telemetry import get_logger
from sluice.transport.nats import Bus
from sluice.types import (
    Batch,
    BatchGroup,
    DropReason,
    FinishReason,
    Floors,
    Issue,
    PolicyVersion,
    RolloutSummary,
    SamplingStats,
    Tally,
    VerdictKind,
)
from sluice.wire import subjects
from sluice.wire.records import encode_ledger

ROOT = Path(__file__).parent.parent.parent
LATE = PolicyVersion(200_000, 100)


def spec(prompts_per_step: int, group_size: int, staleness: int) -> RunSpec:
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["rollout"] |= {"group_size": group_size}
    fields["trainer"] |= {"prompts_per_step": prompts_per_step}
    fields["asynchrony"] |= {"max_staleness": staleness}
    fields["checkpoint"] |= {"interval": 1}
    return parse_run_spec(fields)


def largest_batch(run: RunSpec) -> Batch:
    """Batch 200,000 of a run: large numbers everywhere, no two live groups issued together, one in ten kept."""
    rollout = RolloutSummary(
        (10**12,), bytes(16), VerdictKind.SCORED, 1.0, 1.0, -0.5, 40_000, FinishReason.LENGTH, LATE, LATE
    )
    rollout = replace(rollout, offset=10**6, nbytes=10**6)
    size, first = run.trainer.prompts_per_step, 10**10
    return Batch(
        k=200_000,
        groups=tuple(
            BatchGroup(first + i, "0123456789abcdef", 200_000, 10**12, (rollout,) * run.rollout.group_size)
            for i in range(size)
        ),
        dropped=tuple((first + i, DropReason.ALL_CORRECT) for i in range(DROPS_PER_GROUP * size)),
        next_n=first,
        live=tuple(
            Issue(first + 2 * i, 1, 200_000, Floors(10**12, 10**12)) for i in range(size * run.asynchrony.max_staleness)
        ),
        floors=Floors(0, 0),
        tally=Tally(),
        sampled=SamplingStats(),
        version=200_000,
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 40), st.integers(2, 32), st.integers(0, 4))
def test_no_batch_record_is_larger_than_the_room_it_is_given(size: int, group_size: int, staleness: int) -> None:
    run = spec(size, group_size, staleness)
    encoded = len(encode_ledger(largest_batch(run)))
    assert encoded < batch_room(run) < 1.35 * encoded


async def test_a_run_whose_batches_the_server_would_refuse_is_not_created(bus: Bus) -> None:
    board = StatusBoard("redis://127.0.0.1:1/0", get_logger("test"))
    directory = Directory(
        bus, RunReader(bus), board, Around(NatsWatch(), board), TruthCheck((), 1), CoordinatorConfig()
    )
    assert bus.nc.max_payload == 1 << 20, "the server's own default"
    fits, grows = spec(512, 16, 0), spec(1024, 16, 1)
    assert (await directory.create(fits, None)).total_steps == fits.trainer.total_steps
    with pytest.raises(ConfigError, match=r"prompts_per_step = 1024 .*group_size = 16 .*takes messages of 1048576"):
        await directory.create(grows, None)


async def test_a_message_that_is_too_large_says_so_and_is_not_tried_for_ever(bus: Bus) -> None:
    with pytest.raises(ConfigError, match="over the NATS server's max_payload of 1048576"):
        await bus.publish(subjects.ledger("run"), bytes(bus.nc.max_payload + 1))
