"""How a worker process comes, goes, and dies: nothing it held is lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.rollout.config import WorkerConfig
from sluice.errors import ConfigError
from sluice.transport.log import ledger_log
from sluice.transport.queues import ACK_WAIT_SECONDS
from sluice.types import GroupStatus, RunCreated, Sampling
from sluice.wire import subjects
from tests.rollout.conftest import StartProcess, StartWorker
from tests.rollout.stage import ROOT, EngineServer, Stage, eventually
from tests.rollout.test_weight_sync import LONG, events, generating, long_run
from tests.servers import free_port


async def test_groups_in_flight_at_a_worker_that_is_killed_are_stored_by_another_one(
    stage: Stage,
    engine: EngineServer,
    endless_engine: EngineServer,
    start_worker: StartWorker,
    start_process: StartProcess,
) -> None:
    await long_run(stage)
    await stage.publish(0)
    await stage.forget_silent_workers_after(6.0)
    doomed = start_process(endless_engine.url, SLUICE_WORKER_NAME="doomed")
    prompts = [stage.prompt(n, sampling=Sampling(LONG, stop_token_ids=(1, 3))) for n in range(3)]
    endless = stage.prompt(3, sampling=Sampling(2000))
    await eventually(lambda: _serves(stage, "doomed"))
    await stage.offer(*prompts, endless)
    await generating(endless_engine)
    doomed.kill()
    assert 3 not in await stage.stored()

    await start_worker(engine.url, "heir")
    groups = await stage.groups(4, 60)

    assert groups[3].worker == "heir"
    assert all(group.status == GroupStatus.SCORED for group in groups.values())
    await eventually(lambda: _none_left(stage))


async def _serves(stage: Stage, name: str) -> bool:
    worker = (await stage.workers()).get(name)
    return worker is not None and worker["version"] is not None


async def _none_left(stage: Stage) -> bool:
    return await stage.prompts_left() == 0


async def test_sigterm_lets_groups_in_flight_finish_then_unregisters_and_exits_with_zero(
    stage: Stage, endless_engine: EngineServer, start_process: StartProcess
) -> None:
    await long_run(stage)
    await stage.publish(0)
    worker = start_process(endless_engine.url, SLUICE_WORKER_NAME="w1")
    await eventually(lambda: _serves(stage, "w1"))
    await stage.offer(stage.prompt(0, sampling=Sampling(LONG)))
    await generating(endless_engine)

    code = await asyncio.to_thread(worker.stop)

    assert code == 0, worker.log.read_text()
    assert set(await stage.groups(1)) == {0}
    assert await stage.workers() == {}
    assert [event["worker"] for event in await events(stage, "worker_left", 1)] == ["w1"]


async def test_what_cannot_finish_before_the_drain_deadline_is_handed_to_somebody_else_at_once(
    stage: Stage, engine: EngineServer, endless_engine: EngineServer, start_worker: StartWorker
) -> None:
    await long_run(stage)
    await stage.publish(0)
    stop = await start_worker(endless_engine.url, "leaving", drain_seconds=0.2)
    await stage.offer(stage.prompt(0, sampling=Sampling(2000)))
    await generating(endless_engine)
    stop.set()
    left = time.monotonic()

    await start_worker(engine.url, "staying")
    group = (await stage.groups(1))[0]

    assert group.worker == "staying"
    assert time.monotonic() - left < ACK_WAIT_SECONDS  # not after the silence that a dead worker costs


async def test_a_run_that_is_stopping_gets_no_more_groups_and_the_worker_turns_to_the_next_run(
    stage: Stage, endless_engine: EngineServer, start_worker: StartWorker, tmp_path: Path
) -> None:
    await long_run(stage)
    await stage.publish(0)
    await start_worker(endless_engine.url)
    await stage.offer(stage.prompt(0, sampling=Sampling(2000)))
    await generating(endless_engine)
    await stage.state("stopping")
    await eventually(lambda: _none_left(stage))
    assert await stage.stored() == {}

    following = Stage(stage.bus, stage.model, tmp_path, run="run-b")
    await following.open()
    await following.publish(7)
    await following.offer(following.prompt(0))
    group = (await following.groups(1))[0]
    assert group.run_id == "run-b"
    assert {s.oldest_version.number for s in group.rollouts} == {7}


async def test_a_paused_run_keeps_its_workers_and_what_runs_left_that_are_over_is_removed_before_it_is_served(
    stage: Stage, engine: EngineServer, start_worker: StartWorker, tmp_path: Path
) -> None:
    await stage.open(state="paused")
    await stage.publish(0)
    await Stage(stage.bus, stage.model, tmp_path, run="run-ended").state("failed")
    await (await stage.bus.bucket(subjects.DELETED_BUCKET)).put("run-gone", b'{"keep_checkpoints": false}')
    caches = [tmp_path / "cache" / f"http-{name}" for name in ("w1", "another-engine")]
    runs = ("run-ended", "run-gone", "run-of-another-server", stage.run)
    for folder in [cache / run / "v1.1" for cache in (*caches, tmp_path / "cache" / "checkpoints") for run in runs]:
        folder.mkdir(parents=True)
    await start_worker(engine.url)
    await eventually(lambda: _serves(stage, "w1"))
    for cache in caches:
        assert {folder.name for folder in cache.iterdir()} == {"run-of-another-server", stage.run}
    assert len(list((tmp_path / "cache" / "checkpoints").iterdir())) == len(runs), "what is no cache is not touched"
    await stage.offer(stage.prompt(0))  # a group that was in flight when the run was paused
    await stage.groups(1)


async def test_a_run_with_another_config_hash_is_refused_and_others_are_served(
    stage: Stage, engine: EngineServer, start_worker: StartWorker, tmp_path: Path
) -> None:
    stranger = Stage(stage.bus, stage.model, tmp_path, run="run-0")
    spec = await stage.open()
    await ledger_log(stage.bus, "run-0").append(RunCreated("run-0", spec.canonical_json, "0" * 16))
    await stranger.state("running", created_at=0.0)
    await stage.publish(0)
    await start_worker(engine.url)
    await stage.offer(stage.prompt(0))
    await stage.groups(1)


async def test_a_run_that_no_coordinator_can_hold_is_left_for_others_until_one_can(
    stage: Stage, engine: EngineServer, start_worker: StartWorker, tmp_path: Path
) -> None:
    other = Stage(stage.bus, stage.model, tmp_path, run="run-b")
    for run in (stage, other):
        await run.open()
        await run.publish(0)
    await start_worker(engine.url)
    await eventually(lambda: _serves(stage, "w1"))
    await stage.state("running", problem="LEDGER sequence 3: LedgerRecord has format 9")
    await other.offer(other.prompt(0))
    await other.groups(1)
    await stage.state("running")
    await other.state("stopping")
    await stage.offer(stage.prompt(0))
    await stage.groups(1)


async def test_the_worker_starts_restarts_and_stops_the_engine_it_sits_beside(
    stage: Stage, start_process: StartProcess
) -> None:
    port = free_port()
    command = f"{sys.executable} -m tests.rollout.sglang {port}"
    await stage.open()
    await stage.publish(0)
    worker = start_process(f"http://127.0.0.1:{port}", SLUICE_ENGINE_COMMAND=command)
    await stage.offer(stage.prompt(0))
    await stage.groups(1, 60)
    first = _engine_pid(port)
    os.kill(first, signal.SIGKILL)
    await stage.offer(stage.prompt(1))
    await stage.groups(2, 60)
    second = _engine_pid(port)
    assert second != first

    assert await asyncio.to_thread(worker.stop) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def _engine_pid(port: int) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        if b"tests.rollout.sglang" in words and str(port).encode() in words:
            return int(path.parent.name)
    raise AssertionError(f"no engine at port {port}")


def test_a_worker_process_loads_nothing_that_loads_models() -> None:
    code = (
        "import services.rollout.__main__, sys; "
        "bad = {'torch', 'transformers', 'deepspeed', 'sglang', 'safetensors'} & set(sys.modules); "
        "print(sorted(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SLUICE_MAX_GROUPS_IN_FLIGHT", "0", "SLUICE_MAX_GROUPS_IN_FLIGHT=0: "),
        ("SLUICE_ENGINE_URL", "localhost:30000", "SLUICE_ENGINE_URL=localhost:30000: "),
        ("SLUICE_ENGINE_COMMAND", "python 'unclosed", "SLUICE_ENGINE_COMMAND=python 'unclosed: No closing quotation"),
        ("SLUICE_WORKER_NAME", "a.b", "SLUICE_WORKER_NAME=a.b: "),
    ],
)
def test_a_fault_of_the_configuration_names_the_variable_and_its_value(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        WorkerConfig.from_environment({name: value})


def test_settings_come_from_the_environment_and_empty_variables_count_as_unset() -> None:
    config = WorkerConfig.from_environment(
        {
            "SLUICE_REWARD_ADDRESSES": "a:1, b:2",
            "SLUICE_ENGINE_COMMAND": "python -m services.engine --model 'my model'",
            "SLUICE_ENGINE_API_KEY": "",
        }
    )
    assert config.reward_addresses == ("a:1", "b:2")
    assert config.engine_command == ("python", "-m", "services.engine", "--model", "my model")
    assert config.engine_api_key is None


def test_a_worker_that_finds_no_nats_ends_with_one_line_and_may_be_started_again(start_process: StartProcess) -> None:
    worker = start_process("http://127.0.0.1:1", SLUICE_NATS_DEADLINE_SECONDS="1", SLUICE_NATS_URL="nats://127.0.0.1:1")
    assert worker.popen.wait(30) == 1, "2 would keep supervisors from starting it again"
    line = worker.log.read_text().splitlines()[-1]
    assert line.startswith("sluice-rollout: SLUICE_NATS_URL=nats://127.0.0.1:1: no NATS server answers within 1 s")
