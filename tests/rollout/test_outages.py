"""What happens to a worker when NATS or Redis goes away."""

from __future__ import annotations

import asyncio

from services.rollout.attempts import Attempts, Record
from sluice.transport.nats import Bus
from sluice.types import GroupStatus, Sampling
from tests.rollout.conftest import StartProcess, StartWorker
from tests.rollout.stage import EngineServer, Stage, eventually
from tests.rollout.test_weight_sync import LONG, generating, long_run
from tests.servers import NatsServer


async def test_groups_in_flight_outlive_a_killed_nats_server(
    stage: Stage, endless_engine: EngineServer, nats_server: NatsServer, start_worker: StartWorker
) -> None:
    await long_run(stage)
    await stage.publish(0)
    await start_worker(endless_engine.url)
    await stage.offer(*(stage.prompt(n, sampling=Sampling(LONG)) for n in range(2)))
    await generating(endless_engine)
    nats_server.kill()
    await asyncio.sleep(1.0)
    nats_server.start()

    groups = await stage.groups(2, 60)
    await stage.offer(stage.prompt(2, sampling=Sampling(8)))
    await stage.groups(3, 60)

    assert all(group.status == GroupStatus.SCORED for group in groups.values())


async def test_sigterm_ends_a_worker_also_while_nats_is_away(
    stage: Stage, engine: EngineServer, nats_server: NatsServer, start_process: StartProcess
) -> None:
    await stage.open()
    await stage.publish(0)
    worker = start_process(engine.url, SLUICE_WORKER_NAME="w1", SLUICE_NATS_DEADLINE_SECONDS="2")
    await eventually(stage.workers)
    nats_server.kill()
    code = await asyncio.to_thread(worker.stop, 30.0)
    assert code == 0, worker.log.read_text()
    nats_server.start()  # so that the test's own connection can be closed


async def test_attempts_are_known_before_they_end_and_forgotten_once_the_group_is_stored(bus: Bus) -> None:
    attempts = await Attempts.open(bus, "r")
    assert await attempts.begin(3, "a") == Record(0, ())
    assert await attempts.begin(3, "b") == Record(0, ("a",))  # the worker of "a" may have died with its engine
    assert await attempts.end(3, "b", engine_failed=True) == 1
    assert await attempts.end(3, "b", engine_failed=True) == 1, "said again, as an answer was lost, it counts once"
    third = await attempts.begin(3, "c")
    assert third == Record(1, ("a",))
    assert third.suspect
    await attempts.forget(3)
    assert await attempts.begin(3, "d") == Record(0, ())


async def test_attempts_of_many_workers_at_one_prompt_are_all_counted(bus: Bus) -> None:
    attempts = await Attempts.open(bus, "r")

    async def fail(name: str) -> None:
        await attempts.begin(0, name)
        await attempts.end(0, name, engine_failed=True)

    await asyncio.gather(*(fail(f"a{i}") for i in range(12)))
    assert await attempts.begin(0, "last") == Record(12, ())
