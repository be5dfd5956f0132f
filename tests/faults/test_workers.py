"""Workers, engines, rewards and NATS that die, freeze, are cut off, or hear things twice: one group, and the right one.

Real processes on real servers; the test plays coordinator and trainer. Violations 1, 5 and 11 of the protocol model.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.rollout.attempts import Attempts
from sluice.transport.log import last_sequence, read_stream
from sluice.transport.nats import Bus
from sluice.transport.queues import fetch_rollouts
from sluice.types import Group, GroupStatus, Rollout, Sampling
from sluice.wire import subjects
from sluice.wire.codec import encode_prompt
from tests.faults.proxy import Do, Proxy
from tests.faults.test_payload import restart
from tests.rollout.stage import EngineServer, RewardServer, Stage, WorkerProcess, endless_model, eventually
from tests.rollout.test_weight_sync import LONG, generating, long_run
from tests.servers import NatsServer

SHORT = Sampling(8)
StartWorker = Callable[..., WorkerProcess]


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """Writes until a prompt's own limit, so that a test can act in mid-group."""
    folder = tmp_path_factory.mktemp("engine")
    engine = EngineServer(endless_model(tiny_model, folder / "model"), folder / "log")
    engine.wait()
    yield engine
    engine.kill()


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RewardServer]]:
    folder = tmp_path_factory.mktemp("rewards")
    servers = [RewardServer(folder / str(i)) for i in range(2)]
    for server in servers:
        server.wait()
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
async def stage(bus: Bus, tiny_model: Path, tmp_path: Path) -> Stage:
    """A run at version 0 whose silent workers are given up after two seconds."""
    stage = Stage(bus, tiny_model, tmp_path)
    await long_run(stage, reward__deadline_seconds=4)
    await stage.publish(0)
    await stage.forget_silent_workers_after(2.0)
    return stage


@pytest.fixture
def start_worker(
    engine: EngineServer, rewards: list[RewardServer], nats_url: str, tmp_path: Path
) -> Iterator[StartWorker]:
    """Start a worker process under a name, straight or through a proxy; what still runs at the end is killed."""
    started: list[WorkerProcess] = []

    def start(name: str, proxy: Proxy | None = None) -> WorkerProcess:
        addresses = ",".join(reward.address for reward in rewards)
        url = nats_url if proxy is None else proxy.url
        started.append(WorkerProcess(url, engine.url, addresses, tmp_path, SLUICE_WORKER_NAME=name))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


async def rollouts(bus: Bus, group: Group) -> list[Rollout]:
    """Those that the group names, their hashes verified."""
    return await fetch_rollouts(bus, group.rollouts)


async def test_a_group_never_has_the_rollouts_of_an_attempt_that_died_before_it_was_committed(
    stage: Stage, bus: Bus, proxy: Proxy, start_worker: StartWorker
) -> None:
    doomed = start_worker("doomed", proxy)
    last_words = proxy.catch(subjects.group(stage.run, 0), on_catch=doomed.kill)
    await stage.offer(stage.prompt(0, sampling=SHORT))
    await last_words.wait()
    orphans = await last_sequence(bus, subjects.ROLLOUTS, subjects.rollouts(stage.run))
    assert orphans == 1, "its rollouts are all stored, in one message"

    start_worker("heir")
    group = (await stage.groups(1))[0]
    last_words.release()  # and its group lands after all
    await asyncio.sleep(0.5)

    assert (await stage.stored())[0] == group
    assert group.worker == "heir"
    assert min(sequence for s in group.rollouts for sequence in s.sequences) > orphans
    assert {rollout.attempt for rollout in await rollouts(bus, group)} == {group.attempt}


async def test_a_prompt_whose_ack_was_lost_with_its_worker_gives_no_second_group(
    stage: Stage, bus: Bus, proxy: Proxy, start_worker: StartWorker
) -> None:
    doomed = start_worker("doomed", proxy)
    ack = proxy.catch("$JS.ACK.PROMPTS.*", on_catch=doomed.kill)
    await stage.offer(stage.prompt(0, sampling=SHORT))
    await ack.wait()
    ack.drop()
    before = await stage.groups(1)
    start_worker("heir")

    async def settled() -> bool:
        return await stage.prompts_left() == 0

    await eventually(settled)
    assert await stage.stored() == before
    assert before[0].worker == "doomed"


async def test_a_good_prompt_is_not_failed_however_many_workers_died_over_it(
    stage: Stage, bus: Bus, start_worker: StartWorker
) -> None:
    attempts = await Attempts.open(bus, stage.run)
    for name in "abcdefgh":
        await attempts.begin(0, name)  # all that a worker leaves behind that is killed in mid-group
    await stage.offer(stage.prompt(0, sampling=SHORT))
    start_worker("w")
    assert (await stage.groups(1))[0].status is GroupStatus.SCORED


@pytest.mark.parametrize("fault", ["partition", "freeze"])
async def test_a_worker_that_is_cut_off_or_frozen_in_mid_group_is_replaced_and_does_no_harm_when_it_is_back(
    fault: str, stage: Stage, bus: Bus, proxy: Proxy, engine: EngineServer, start_worker: StartWorker
) -> None:
    away = start_worker("away", proxy)
    await stage.offer(stage.prompt(0, sampling=Sampling(LONG)))
    await generating(engine)
    if fault == "partition":
        proxy.part()
    else:
        away.popen.send_signal(signal.SIGSTOP)
    start_worker("heir")
    group = (await stage.groups(1, 60))[0]
    assert group.worker == "heir"
    proxy.heal()
    away.popen.send_signal(signal.SIGCONT)
    await stage.offer(*(stage.prompt(n, sampling=SHORT) for n in range(1, 9)))

    groups = await stage.groups(9)

    assert groups[0] == group
    assert {g.status for g in groups.values()} == {GroupStatus.SCORED}
    await eventually(lambda: away.popen.poll() is None and "group_lost_to_another_attempt" in away.log.read_text())


async def test_prompts_that_come_twice_and_in_reverse_order_become_one_group_each(
    stage: Stage, bus: Bus, proxy: Proxy, start_worker: StartWorker
) -> None:
    for subject in (subjects.rollouts(stage.run), subjects.group(stage.run, 5)):
        proxy.catch(subject, Do.TWICE)
    proxy.catch(subjects.group(stage.run, 3), Do.LOSE_ANSWER)
    one, other = start_worker("one", proxy), start_worker("other")
    for n in reversed(range(8)):
        for _ in range(2):  # without a message id nobody recognises the second one
            await bus.publish(subjects.prompt(stage.run, n), encode_prompt(stage.prompt(n, sampling=SHORT)))
    groups = await stage.groups(8)

    async def settled() -> bool:
        return await stage.prompts_left() == 0

    await eventually(settled)
    assert sorted(n for n in groups) == list(range(8))
    assert await stage.stored() == groups
    for group in groups.values():
        assert {rollout.attempt for rollout in await rollouts(bus, group)} == {group.attempt}
    assert one.popen.poll() is None and other.popen.poll() is None


async def test_a_reward_server_that_hangs_costs_time_and_no_verdict(
    stage: Stage, rewards: list[RewardServer], start_worker: StartWorker
) -> None:
    worker = start_worker("w")
    rewards[0].popen.send_signal(signal.SIGSTOP)
    await stage.offer(*(stage.prompt(n, sampling=SHORT) for n in range(3)))
    await stage.groups(3)  # by the other one
    rewards[1].popen.send_signal(signal.SIGSTOP)
    await stage.offer(*(stage.prompt(n, sampling=SHORT) for n in range(3, 6)))
    await eventually(lambda: worker.log.read_text().count("prompt_handed_back") >= 3)
    assert len(await stage.stored()) == 3, "no outcome is made up"
    for server in rewards:
        server.popen.send_signal(signal.SIGCONT)
    groups = await stage.groups(6)
    assert {group.status for group in groups.values()} == {GroupStatus.SCORED}


async def test_a_full_stream_holds_workers_back_until_there_is_room_and_they_say_so(
    stage: Stage, bus: Bus, start_worker: StartWorker
) -> None:
    config = (await bus.js.stream_info(subjects.ROLLOUTS)).config
    room = config.max_bytes
    await bus.js.update_stream(config, max_bytes=1)
    worker = start_worker("w")
    await stage.offer(*(stage.prompt(n, sampling=SHORT) for n in range(3)))
    await eventually(lambda: "maximum bytes exceeded" in worker.log.read_text())
    assert f'"where": "{subjects.rollouts(stage.run)}"' in worker.log.read_text(), "it says where"
    assert await stage.stored() == {}, "no group whose rollouts are not all stored"
    await bus.js.update_stream(config, max_bytes=room)
    for group in (await stage.groups(3)).values():
        assert len(await rollouts(bus, group)) == stage.prompt(0).group_size


async def test_a_worker_whose_rollouts_the_server_refuses_ends_with_the_limit_named_and_leaves_its_prompt_to_others(
    stage: Stage, nats_server: NatsServer, bus: Bus, start_worker: StartWorker
) -> None:
    worker = start_worker("w")
    await stage.offer(stage.prompt(0, sampling=SHORT))
    first = await stage.groups(1)
    restart(nats_server, 8192)
    await stage.offer(stage.prompt(1, sampling=Sampling(LONG)))
    assert await asyncio.to_thread(worker.popen.wait, 30) == 2
    last = worker.log.read_text().splitlines()[-1]
    assert "takes messages of 8192" in last and "rollout.max_response_length" in last
    alarms = [payload async for _, payload, _ in read_stream(bus, subjects.EVENTS, subjects.event(stage.run, "alarm"))]
    assert len(alarms) == 1 and b"takes messages of 8192" in alarms[0] and b'"worker":"w"' in alarms[0]
    assert await stage.stored() == first and await stage.prompts_left() == 1, "nothing was sampled for nothing"
    restart(nats_server, 1 << 20)
    start_worker("other")
    group = (await stage.groups(2))[1]
    assert len(await rollouts(bus, group)) == stage.prompt(1).group_size


async def test_a_frozen_nats_server_stops_everything_and_loses_nothing(
    stage: Stage, nats_server: NatsServer, bus: Bus, start_worker: StartWorker
) -> None:
    worker = start_worker("w")
    await stage.offer(*(stage.prompt(n, sampling=SHORT) for n in range(2)))
    await stage.groups(2)
    assert nats_server.process is not None
    nats_server.process.send_signal(signal.SIGSTOP)
    offer = asyncio.create_task(stage.offer(*(stage.prompt(n, sampling=SHORT) for n in range(2, 6))))
    await asyncio.sleep(5.0)  # longer than a request waits before it is asked again
    nats_server.process.send_signal(signal.SIGCONT)
    await offer
    assert sorted(await stage.groups(6)) == list(range(6))
    assert worker.popen.poll() is None


async def test_after_a_rollback_an_engine_has_the_weights_of_the_new_lineage_alone(
    stage: Stage, bus: Bus, engine: EngineServer, start_worker: StartWorker
) -> None:
    async def sampled(n: int, version: int) -> list[tuple[list[int], list[float]]]:
        await stage.offer(stage.prompt(n, seed=7, sampling=SHORT, min_version=version))
        return [(list(r.token_ids), list(r.logprobs)) for r in await rollouts(bus, (await _group(bus, stage, n)))]

    start_worker("w")
    await stage.publish(1, scale=1.01)
    lost = await sampled(0, 1)
    await stage.publish(1, lineage=2, scale=1.02)  # the replay differs; the engine keeps what it has
    await stage.publish(2, lineage=2, scale=1.03)
    passed = await sampled(1, 2)
    await asyncio.to_thread(engine.restart)  # so that nothing of earlier versions can be in it
    await asyncio.to_thread(engine.wait)
    fresh = await sampled(2, 2)
    assert passed == fresh != lost


async def _group(bus: Bus, stage: Stage, n: int) -> Group:
    async def stored() -> Group | None:
        return (await stage.stored()).get(n)

    group = await eventually(stored)
    assert isinstance(group, Group)
    return group
