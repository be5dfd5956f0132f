"""A NATS server that takes smaller messages than a run needs: who is refused says so, and goes on once it is mended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.transport.nats import Bus
from tests.coordinator.stage import ROOT, Stage, create, post, spec, wait_for_state
from tests.faults.conftest import StartCoordinator
from tests.faults.work import Hands, batches, dropped, finish, issued, trained
from tests.servers import NatsServer


def restart(server: NatsServer, max_payload: int) -> None:
    """The same server, with this limit from now on."""
    config: Path = server.store.with_suffix(".conf")
    config.write_text(f"max_payload: {max_payload}\n")
    server.stop()
    server.start("-c", str(config))


async def test_a_run_whose_rollouts_the_server_would_refuse_is_not_created(
    nats_server: NatsServer, start_coordinator: StartCoordinator
) -> None:
    restart(nats_server, 256 << 10)
    coordinator = start_coordinator(nats_server.url)
    await create(coordinator, spec(rollout__max_response_length=800, rollout__group_size=16))
    with pytest.raises(AssertionError, match=r"max_response_length = 800 .*takes messages of 262144.*max_payload"):
        await create(coordinator, spec(rollout__max_response_length=800, rollout__group_size=64))


async def test_a_batch_that_the_server_refuses_pauses_the_run_with_the_limit_named_and_is_emitted_when_it_resumes(
    bus: Bus, nats_server: NatsServer, start_coordinator: StartCoordinator
) -> None:
    coordinator = start_coordinator(nats_server.url)
    stage = Stage(bus, (await create(coordinator, spec(trainer__prompts_per_step=8, trainer__total_steps=2)))["id"])
    await stage.join()
    hands = Hands(stage)
    await hands.hold(*range(16))
    restart(nats_server, 600)  # room for a group, not for eight
    await hands.store(*range(8))
    paused = await wait_for_state(coordinator, stage.run_id, "paused")
    assert "max_payload of 600" in paused["reason"] and "prompts_per_step" in paused["reason"]
    restart(nats_server, 1 << 20)
    assert (await post(coordinator, f"/v1/runs/{stage.run_id}/resume")).status_code == 200
    await batches(stage, 1)
    assert await issued(stage) == 16 and not await dropped(stage)
    await hands.store(*range(8, 16))
    await finish(stage, 2)
    await wait_for_state(coordinator, stage.run_id, "succeeded")
    assert sorted(await trained(stage)) == list(range(16))


async def test_prompts_that_the_server_refuses_pause_the_run_with_the_limit_named_and_are_offered_when_it_resumes(
    bus: Bus, nats_server: NatsServer, start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (ROOT / "configs" / "data" / "tiny_addition.jsonl").read_text().splitlines()]
    for row in rows:
        row["extra_info"]["source"] = "x" * 4000
    (file := tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    coordinator = start_coordinator(nats_server.url)
    stage = Stage(bus, (await create(coordinator, spec(data__train_files=[str(file)])))["id"])
    restart(nats_server, 3000)
    await stage.join()
    paused = await wait_for_state(coordinator, stage.run_id, "paused")
    assert "max_payload of 3000" in paused["reason"] and "resume tries again" in paused["reason"]
    restart(nats_server, 1 << 20)
    assert (await post(coordinator, f"/v1/runs/{stage.run_id}/resume")).status_code == 200
    await Hands(stage).hold(*range(8))
