"""Runs without a fault: the audit counts them and finds nothing, whatever the schedule was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.audit import AuditReport, audit
from sluice.transport.nats import Bus
from sluice.types import Issue, PolicyVersion
from sluice.wire import subjects
from tests.audit.world import World, make_spec
from tests.servers import NatsServer

RUNS = count()


@pytest.fixture(scope="module")
def shared_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server.url
    server.kill()


async def test_an_ended_run_is_clean_and_every_group_has_one_fate(bus: Bus) -> None:
    world = World("run-a").play()
    await world.write(bus)
    report = await audit(bus, "run-a")
    assert report.findings == ()
    assert (report.state, report.trained, report.awaiting_training, report.live) == ("succeeded", 12, 0, 0)
    assert report.issued == world.queue.next_n == 12 + sum(report.dropped.values())
    assert report.lost == report.trained_twice == report.staleness_violations == report.capacity_violations == 0
    assert sum(report.staleness_histogram.values()) == 24
    assert report.response_length["kept"] is not None


async def play_and_audit(
    url: str, seed: int, crashes: int, stop_after: int | None, spec: dict[str, Any]
) -> AuditReport:
    bus = await Bus.connect(url, "test", deadline_seconds=10)
    await bus.ensure_streams()
    ends = [(await bus.js.stream_info(stream)).state.last_seq for stream in (subjects.GROUPS, subjects.ROLLOUTS)]
    world = World(
        f"run-{next(RUNS)}", make_spec(**spec), random.Random(seed), ends[0] + 1, ends[1] + 1, packed=seed % 2 == 0
    )
    for _ in range(crashes):
        world.play(steps=min(world.steps + world.random.randint(0, 2), world.spec.trainer.total_steps))
        world.random.choice([world.take_over, world.restart_trainer])()
    world.play(stop_after)
    await world.write(bus)
    report = await audit(bus, world.run_id)
    await bus.close()
    return report


specs = st.fixed_dictionaries(
    {
        "asynchrony": st.sampled_from(
            [
                {"max_staleness": 0},
                {"max_staleness": 0, "overissue": 2},
                {"max_staleness": 1},
                {"max_staleness": 3},
                {"max_staleness": 2, "stragglers": "drop"},
            ]
        ),
        "trainer": st.fixed_dictionaries({"total_steps": st.integers(1, 6), "prompts_per_step": st.integers(1, 4)}),
    }
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), crashes=st.integers(0, 3), spec=specs)
def test_any_schedule_with_any_crashes_is_clean_once_ended(
    shared_url: str, seed: int, crashes: int, spec: dict[str, Any]
) -> None:
    report = asyncio.run(play_and_audit(shared_url, seed, crashes, None, spec))
    assert report.findings == ()
    assert report.issued == report.trained + sum(report.dropped.values())
    assert report.training_steps == spec["trainer"]["total_steps"]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), crashes=st.integers(0, 2), spec=specs)
def test_a_run_that_goes_on_is_clean_at_any_moment(
    shared_url: str, seed: int, crashes: int, spec: dict[str, Any]
) -> None:
    stop_after = 1 + seed % spec["trainer"]["total_steps"]
    report = asyncio.run(play_and_audit(shared_url, seed, crashes, stop_after, spec))
    assert report.findings == ()
    fates = report.trained + report.awaiting_training + sum(report.dropped.values()) + report.live
    assert report.issued == fates


async def test_generation_in_rounds_is_clean(bus: Bus) -> None:
    spec = make_spec(filter={"mode": "rounds", "gen_batch_size": 8}, asynchrony={"max_staleness": 0})
    await World("run-a", spec).play().write(bus)
    report = await audit(bus, "run-a")
    assert report.findings == ()
    assert report.dropped.get("surplus", 0) > 0
    assert set(report.staleness_histogram) == {0}


async def test_attempts_that_died_and_groups_that_came_late_are_counted_and_no_fault(bus: Bus) -> None:
    world = World("run-a", make_spec(checkpoint={"interval": 4}), random.Random(3)).play()
    world.late_group(0)
    await world.write(bus)
    report = await audit(bus, "run-a")
    assert report.findings == ()
    assert (report.late_groups, report.rollouts_orphaned > 0) == (1, True)
    assert report.groups_with_several_attempts > 0


async def test_a_live_group_is_in_flight_while_its_prompt_waits_and_kept_once_stored(bus: Bus) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    n = next(iter(world.queue.in_flight_groups()))
    world.work(n, correct=[True, False])
    await world.write(bus)
    report = await audit(bus, "run-a")
    assert report.findings == ()
    assert report.in_flight == world.queue.in_flight
    assert report.kept == report.trained + report.awaiting_training + world.queue.kept


async def test_a_group_whose_prompt_is_not_published_yet_is_no_fault_while_nothing_was_written_since(bus: Bus) -> None:
    world = World("run-a").play(steps=1)
    world.coordinate()
    world.ledger = world.ledger[: max(i for i, r in enumerate(world.ledger) if isinstance(r, Issue)) + 1]
    last = world.ledger[-1]
    assert isinstance(last, Issue)
    world.prompts -= set(range(last.first, last.first + last.count))
    await world.write(bus)
    assert (await audit(bus, "run-a")).lost == 0


async def test_versions_are_told_apart_by_lineage(bus: Bus) -> None:
    world = World("run-a").play(steps=2)
    world.restart_trainer()
    world.play()
    await world.write(bus)
    report = await audit(bus, "run-a")
    assert report.findings == ()
    assert (report.lineages, report.training_steps) == (2, 4)
    assert world.versions()[-1] == PolicyVersion(4, 2)
