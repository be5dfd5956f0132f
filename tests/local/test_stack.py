"""The table of services, the state file, and real brokers started from them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import nats
import pytest

from sluice.errors import ConfigError
from sluice.local import binaries
from sluice.local.ports import free_ports
from sluice.local.run import check_model
from sluice.local.stack import Stack, StackOptions, plan_stack
from sluice.local.state import StackState, find_stack, running_stacks, stack_folder, write_state
from sluice.transport.nats import Bus
from tests.local.processes import kill, supervised, until

BROKERS = ("nats", "valkey")


def plan(folder: Path, **options: object) -> Stack:
    stack = plan_stack(StackOptions(folder, Path("models/tiny"), **options))  # type: ignore[arg-type]  # keywords of StackOptions
    for file, text in stack.files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return stack


def state(name: str, pid: int) -> StackState:
    return StackState(
        name=name,
        supervisor_pid=pid,
        api_url="http://127.0.0.1:1",
        nats_url="nats://127.0.0.1:2",
        redis_url="redis://127.0.0.1:3/0",
        data="data",
        ports={},
        pids={},
        logs={},
    )


def test_every_service_needs_only_services_that_stand_before_it(tmp_path: Path) -> None:
    seen: set[str] = set()
    for service in plan(tmp_path, rollout_workers=2, trainer_ranks=2, reward_servers=3).services:
        assert set(service.after) <= seen
        seen.add(service.name)
    assert {"nats", "valkey", "coordinator", "trainer", "reward-2", "engine-1", "rollout-1"} <= seen


def test_no_two_services_of_a_stack_share_a_port_or_a_log(tmp_path: Path) -> None:
    stack = plan(tmp_path, rollout_workers=3)
    names = [command.name for service in stack.services for command in service.commands]
    assert len(set(stack.ports.values())) == len(stack.ports)
    assert len(set(names)) == len(names)


def test_what_runs_torch_gets_one_thread_and_an_allocator_that_keeps_its_memory(tmp_path: Path) -> None:
    services = {service.name: service for service in plan(tmp_path).services}
    for name in ("engine-0", "trainer"):
        environment = services[name].commands[0].environment
        assert environment["OMP_NUM_THREADS"] == "1" and environment["MALLOC_MMAP_MAX_"] == "0"


def test_ranks_know_their_number_and_share_one_service(tmp_path: Path) -> None:
    trainer = plan(tmp_path, trainer_ranks=2).services[-1]
    assert [(c.environment["RANK"], c.environment["WORLD_SIZE"]) for c in trainer.commands] == [("0", "2"), ("1", "2")]
    assert trainer.fresh_ports == ("MASTER_PORT",)


def test_a_wanted_port_that_is_in_use_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--api-port = {port}: the port is in use"):
            plan(tmp_path, ports={"api": port})


def test_a_wanted_port_that_is_free_is_used(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    assert plan(tmp_path, ports={"api": port}).api_url == f"http://127.0.0.1:{port}"


def test_a_server_program_that_is_not_installed_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=r"nats-server is not installed; run `make setup`"):
        binaries.nats_server()


def test_a_model_that_is_not_there_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder; make it with `python -m sluice\.models\.tiny --out"):
        check_model(tmp_path / "tiny")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"it has no config\.json"):
        check_model(tmp_path / "other")


async def test_two_stacks_run_beside_each_other_and_take_large_messages(tmp_path: Path) -> None:
    stacks = [plan(tmp_path / str(i)) for i in range(2)]
    chosen = [[s for s in stack.services if s.name in BROKERS] for stack in stacks]
    async with supervised(chosen[0], tmp_path / "logs0"), supervised(chosen[1], tmp_path / "logs1"):
        for stack in stacks:
            bus = await Bus.connect(stack.nats_url, "test", deadline_seconds=10)
            await bus.ensure_streams()
            # A full part of a rollout: 1 MiB, and headers on top.
            assert await bus.publish("rollouts.run", bytes(1 << 20), {"Nats-Msg-Id": "run/0/a/0/0"}) == 1
            await bus.close()


async def test_what_nats_has_stored_is_there_after_a_restart_of_the_stack(tmp_path: Path) -> None:
    for expected in (1, 2):
        stack = plan(tmp_path / "data")
        async with supervised([s for s in stack.services if s.name == "nats"], tmp_path / "logs"):
            bus = await Bus.connect(stack.nats_url, "test", deadline_seconds=10)
            await bus.ensure_streams()
            assert await bus.publish("events.run.alarm", b"{}") == expected
            await bus.close()


async def test_live_status_comes_back_although_its_folder_was_deleted(tmp_path: Path) -> None:
    stack = plan(tmp_path / "data")
    async with supervised([s for s in stack.services if s.name == "valkey"], tmp_path / "logs") as supervisor:
        before = supervisor.pids["valkey"]
        shutil.rmtree(tmp_path / "data" / "valkey")
        kill(before)
        await until(lambda: supervisor.pids.get("valkey", before) != before)
        await until(lambda: _answers(stack.ports["redis"]))


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_the_stack_answers_only_on_this_machine(tmp_path: Path) -> None:
    stack = plan(tmp_path / "data")
    assert "0.0.0.0" not in json.dumps(list(stack.files.values()))
    async with supervised([s for s in stack.services if s.name == "nats"], tmp_path / "logs"):
        client = await nats.connect(stack.nats_url)
        assert client.connected_url is not None and client.connected_url.hostname == "127.0.0.1"
        await client.close()


def test_a_second_stack_of_the_same_name_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with (
        stack_folder("local", tmp_path),
        pytest.raises(ConfigError, match="--name = local: a stack of that name runs already"),
        stack_folder("local", tmp_path),
    ):
        raise AssertionError("it must be refused")
    with stack_folder("local", tmp_path):
        pass


def test_commands_find_the_only_running_stack_and_ask_which_when_there_are_two(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stack runs in this folder"):
        find_stack(None, tmp_path)
    with stack_folder("one", tmp_path) as one, stack_folder("two", tmp_path) as two:
        write_state(one, state("one", os.getpid()))
        assert find_stack(None, tmp_path).name == "one"
        write_state(two, state("two", os.getpid()))
        with pytest.raises(ConfigError, match=r"several stacks run in this folder \(one, two\)"):
            find_stack(None, tmp_path)
        assert find_stack("two", tmp_path).name == "two"
    assert running_stacks(tmp_path) == []


def test_the_state_file_of_a_supervisor_that_was_killed_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "dead").mkdir()
    write_state(tmp_path / "dead", state("dead", 2**22 + 1))  # above the largest process id
    assert running_stacks(tmp_path) == []
