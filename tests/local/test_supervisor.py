"""What a user can rely on when the supervisor keeps a stack."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.local import process
from sluice.local.ports import free_ports
from sluice.local.services import Command, Service, TcpHealth
from sluice.local.supervisor import Change, Notice, StackError
from tests.local.processes import alive, kill, shell, supervised, until, valkey


async def test_a_service_starts_only_once_those_it_needs_are_healthy(tmp_path: Path) -> None:
    first, second = free_ports(2)
    notices: list[Notice] = []
    slow = Service(
        "slow",
        (Command("slow", ("/bin/sh", "-c", f"sleep 0.5; exec {_listen(first)}")),),
        (TcpHealth(first),),
    )
    async with supervised([slow, valkey("needs-slow", second, tmp_path, after=("slow",))], tmp_path, notices):
        order = [(n.service, n.change) for n in notices]
        assert order.index(("slow", Change.HEALTHY)) < order.index(("needs-slow", Change.STARTED))


async def test_a_killed_service_comes_back_on_its_port_and_the_others_stay(tmp_path: Path) -> None:
    ports = free_ports(2)
    async with supervised([valkey(f"v{i}", p, tmp_path / str(i)) for i, p in enumerate(ports)], tmp_path) as supervisor:
        before = supervisor.pids
        kill(before["v0"])
        await until(lambda: supervisor.pids.get("v0", before["v0"]) != before["v0"])
        await asyncio.wait_for(_connected(ports[0]), 10)
        assert supervisor.pids["v1"] == before["v1"]


async def test_stop_ends_services_before_those_they_need_and_leaves_no_process(tmp_path: Path) -> None:
    notices: list[Notice] = []
    a, b, c = free_ports(3)
    services = [
        valkey("a", a, tmp_path / "a"),
        valkey("b", b, tmp_path / "b", after=("a",)),
        valkey("c", c, tmp_path / "c", after=("b",)),
    ]
    async with supervised(services, tmp_path, notices) as supervisor:
        pids = supervisor.pids
    assert [n.service for n in notices if n.change is Change.STOPPED] == ["c", "b", "a"]
    assert not any(alive(pid) for pid in pids.values())


async def test_what_a_service_started_itself_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "grandchild"
    async with supervised([shell("parent", f"sleep 600 & echo $! > {pid_file}; wait")], tmp_path):
        await until(lambda: pid_file.exists() and pid_file.read_text().strip() != "")
        grandchild = int(pid_file.read_text())
        assert alive(grandchild)
    await until(lambda: not alive(grandchild))


async def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", 0.3)
    ready = tmp_path / "ready"
    async with supervised([shell("deaf", f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done")], tmp_path) as s:
        await until(ready.exists)
        pid, start = s.pids["deaf"], time.monotonic()
    assert time.monotonic() - start >= 0.3
    assert not alive(pid)


async def test_wrong_configuration_ends_the_stack_with_the_services_own_line(tmp_path: Path) -> None:
    line = "sluice-trainer: SLUICE_TRAINER_THREADS=many: not a number"
    services = [shell("stays", "sleep 600"), shell("wrong", f"echo '{line}' >&2; exit 2", health=(TcpHealth(1),))]
    with pytest.raises(ConfigError) as caught:
        async with supervised(services, tmp_path):
            raise AssertionError("it must not come up")
    assert str(caught.value) == line


async def test_a_service_that_dies_at_its_first_start_ends_the_stack_and_names_its_log(tmp_path: Path) -> None:
    with pytest.raises(StackError) as caught:
        async with supervised([shell("broken", "echo no such thing; exit 7", health=(TcpHealth(1),))], tmp_path):
            raise AssertionError("it must not come up")
    assert all(part in str(caught.value) for part in ("broken", "exit code 7", "no such thing", "broken.log"))


async def test_a_service_that_is_not_healthy_in_time_ends_the_stack(tmp_path: Path) -> None:
    never = shell("mute", "sleep 600", health=(TcpHealth(1),), start_seconds=0.3)
    with pytest.raises(StackError, match=r"mute was not healthy within 0\.3 s"):
        async with supervised([never], tmp_path):
            raise AssertionError("it must not come up")


async def test_wrong_configuration_at_a_restart_ends_a_stack_that_was_running(tmp_path: Path) -> None:
    marker = tmp_path / "second"
    script = f"if [ -e {marker} ]; then echo bad value; exit 2; fi; touch {marker}; sleep 0.3; exit 1"
    async with supervised([shell("turns", script)], tmp_path) as supervisor:
        with pytest.raises(ConfigError, match="bad value"):
            await asyncio.wait_for(supervisor.during(asyncio.Event().wait()), 10)


async def test_work_that_ends_well_is_started_again_at_once_with_another_port(tmp_path: Path) -> None:
    seen = tmp_path / "ports"
    trainer = shell(
        "trainer", f"echo $MASTER_PORT >> {seen}; sleep 0.2", fresh_ports=("MASTER_PORT",), ends_after_work=True
    )
    notices: list[Notice] = []
    async with supervised([trainer], tmp_path, notices):
        await until(lambda: seen.exists() and len(seen.read_text().split()) >= 3)
    ports = seen.read_text().split()
    assert len(set(ports)) == len(ports)
    assert any("for the next run" in n.detail for n in notices)


async def test_ranks_of_a_trainer_end_and_start_together(tmp_path: Path) -> None:
    ranks = tuple(Command(f"rank-{i}", ("/bin/sh", "-c", "exec sleep 600")) for i in range(2))
    async with supervised([Service("trainer", ranks, ())], tmp_path) as supervisor:
        before = supervisor.pids
        kill(before["rank-1"])
        await until(lambda: len(supervisor.pids) == 2 and not set(supervisor.pids.values()) & set(before.values()))
        assert not any(alive(pid) for pid in before.values())


async def test_a_fenced_service_starts_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    notices: list[Notice] = []
    async with supervised([shell("holder", f"echo x >> {starts}; sleep 0.2; exit 3")], tmp_path, notices):
        await until(lambda: starts.exists() and len(starts.read_text().split()) >= 3)
    assert any("fenced" in n.detail for n in notices)


async def test_a_service_waits_for_what_it_needs_before_it_starts_again(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    notices: list[Notice] = []
    broker = Service(
        "broker", (Command("broker", ("/bin/sh", "-c", f"sleep 0.5; exec {_listen(port)}")),), (TcpHealth(port),)
    )
    async with supervised([broker, shell("worker", "exec sleep 600", after=("broker",))], tmp_path, notices) as s:
        pids = s.pids
        notices.clear()
        kill(pids["broker"])
        kill(pids["worker"])
        await until(lambda: s.pids.get("worker", pids["worker"]) != pids["worker"])
    order = [(n.service, n.change) for n in notices]
    assert order.index(("broker", Change.HEALTHY)) < order.index(("worker", Change.STARTED))


async def test_a_port_that_somebody_takes_first_is_said_in_one_line(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    async with supervised([valkey("first", port, tmp_path / "1")], tmp_path / "logs1"):
        second = shell("second", f"exec {_listen(port)}", health=(TcpHealth(1),))
        with pytest.raises(StackError, match="Address already in use"):
            async with supervised([second], tmp_path / "logs2"):
                raise AssertionError("it must not come up")


async def test_a_program_that_is_not_there_is_the_users_fault(tmp_path: Path) -> None:
    absent = Service("absent", (Command("absent", ("/nowhere/nats-server",)),), ())
    with pytest.raises(ConfigError, match="/nowhere/nats-server cannot be started: No such file"):
        async with supervised([absent], tmp_path):
            raise AssertionError("it must not come up")


async def test_each_process_has_a_log_and_the_one_of_the_start_before_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "talker.log"
    for word in ("first", "second"):
        async with supervised([shell("talker", f"echo {word}; exec sleep 600")], tmp_path):
            await until(lambda: bool(log.read_text()))
    assert (tmp_path / "talker.log").read_text() == "second\n"
    assert (tmp_path / "talker.previous.log").read_text() == "first\n"


def test_no_service_outlives_a_supervisor_that_is_killed_with_9(tmp_path: Path) -> None:
    ports = free_ports(2)
    program = f"""
import asyncio, sys
from pathlib import Path
from tests.local.processes import supervised, valkey
async def main():
    folder = Path({str(tmp_path)!r})
    services = [valkey(f"v{{i}}", p, folder / str(i)) for i, p in enumerate({ports})]
    async with supervised(services, folder) as supervisor:
        print(*supervisor.pids.values(), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    supervisor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    with supervisor.stdout:
        pids = [int(pid) for pid in supervisor.stdout.readline().split()]
    assert len(pids) == 2 and all(alive(pid) for pid in pids)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


def _listen(port: int) -> str:
    """A shell command that listens on `port`, or says why it cannot."""
    code = f"import socket,time; s=socket.create_server((\\'127.0.0.1\\',{port})); time.sleep(600)"
    return f"{sys.executable} -c '{code}'".replace("\\'", '"')


async def _connected(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return
