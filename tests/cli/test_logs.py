"""`sluice logs`: one story from the files of all processes, of a stack that runs and of one that has ended."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.cli import main
from sluice.cli.logs import moment
from sluice.errors import ConfigError
from sluice.local import log_files, supervisor
from sluice.local.binaries import nats_server
from sluice.local.log_files import LogReader, bound, log_file, set_aside
from sluice.local.services import Command, HttpHealth, Service
from sluice.local.stack import LOGS_IN_UTC
from sluice.local.state import StackState, write_state
from tests.local.processes import shell, supervised, until, valkey
from tests.servers import free_port

WORKER = """
from sluice.telemetry import configure_logging, get_logger, log_context, log_policy_version
import sys
configure_logging(service="rollout")
log = get_logger("rollout")
log.info("worker_started")
for run in ("one-1", "two-2"):
    with log_context(run=run, group=7):
        log_policy_version("v3.1")
        log.warning("prompt_handed_back", error="busy", engine="http://user:secret@host")
print("plain words", file=sys.stderr)
raise ValueError("torn")
"""


def line(at: str, event: str, level: str = "info", **fields: object) -> str:
    return json.dumps({"timestamp": f"2026-01-01T{at}Z", "level": level, "event": event, **fields}) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of logs of a stack called `local` that does not run; commands are given beside it."""
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "artifacts" / "local" / "logs"
    logs.mkdir(parents=True)
    return logs


@pytest.fixture
def finished(folder: Path) -> Path:
    """Three processes of a stack that has ended, one of which had a start before."""
    (folder / "coordinator.previous.log").write_text(line("09:00:00", "run_claimed", run="one-1"))
    (folder / "coordinator.log").write_text(
        line("10:00:00", "run_state", run="one-1", state="running")
        + line("10:00:04", "batch_emitted", run="one-1", groups=[7, 8])
        + line("10:00:05", "batch_emitted", run="two-2", groups=[1])
    )
    (folder / "rollout-0.log").write_text(
        line("10:00:01", "group_stored", run="one-1", group=7, policy_version="v0.1")
        + line("10:00:02", "group_stored", run="one-1", group=8)
        + line("10:00:03", "engine_away", level="error", run="one-1", error="gone")
        + "Segmentation fault\n"
    )
    (folder / "nats.log").write_text("[4] 2026/01/01 10:00:03.500000 [WRN] slow consumer\n")
    return folder


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["logs", "--json", *arguments]) == 0
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def events(lines: list[dict[str, object]]) -> list[object]:
    return [entry["event"] for entry in lines]


def test_the_lines_of_all_processes_come_in_the_order_of_time(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys)
    assert [entry["timestamp"] for entry in lines] == sorted(str(entry["timestamp"]) for entry in lines)
    assert [entry["process"] for entry in lines] == [
        *("coordinator", "coordinator", "rollout-0", "rollout-0", "rollout-0", "rollout-0", "nats"),
        *("coordinator", "coordinator"),
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["two-2"], ["batch_emitted"]),
        (["one-1", "--group", "7"], ["group_stored", "batch_emitted"]),
        (["one-1", "--service", "rollout"], ["group_stored", "group_stored", "engine_away", "Segmentation fault"]),
        (
            ["--service", "coordinator", "--service", "nats", "--since", "2026-01-01T10:00:03+00:00"],
            ["slow consumer", "batch_emitted", "batch_emitted"],
        ),
        (["--level", "warning"], ["engine_away", "Segmentation fault", "slow consumer"]),
        (["--level", "error", "--stack", "local"], ["engine_away"]),
        (["--since", "1d"], []),
    ],
)
def test_lines_are_chosen_by_run_service_group_level_and_time(
    arguments: list[str], expected: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert events(shown(capsys, *arguments)) == expected


def test_a_search_that_finds_nothing_says_what_was_searched_for(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "one-1", "--group", "99999", "--level", "info", "--service", "rollout"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    wanted = "run one-1, --group 99999, --service rollout, --level info"
    assert said.err == f"no line in artifacts/local/logs matches {wanted}\n"


def test_people_read_time_level_process_event_and_fields(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "one-1", "--group", "7"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    local = datetime(2026, 1, 1, 10, 0, 1, tzinfo=UTC).astimezone()
    assert first.split()[1:] == [
        f"{local:%H:%M:%S}.000",
        "info",
        "rollout-0",
        "group_stored",
        "group=7",
        "policy_version=v0.1",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent-1"], "no log of artifacts/ (stacks: local) has a line about run absent-1"),
        (["--stack", "other"], "--stack other: there is no log of such a stack in artifacts/; there are: local"),
        (
            ["--service", "trainr"],
            "--service trainr: has no log here; there are: coordinator, nats, rollout, rollout-0",
        ),
        (["--level", "loud"], "--level loud: must be one of debug, info, warning, error, critical"),
        (["--since", "yesterday"], "--since yesterday: write an age (90s, 10m, 2h, 1d) or a time"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"sluice: {said}") and errors.count("\n") == 1


def test_without_any_stack_it_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["logs"]) == 2
    assert "no stack has logs in artifacts/; start one with `sluice up RUN_FILE`" in capsys.readouterr().err


def test_a_run_is_found_in_whichever_stack_has_it(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = finished.parents[1] / "other" / "logs"
    other.mkdir(parents=True)
    (other / "trainer-0.log").write_text(line("10:00:00", "step", run="three-3"))
    assert events(shown(capsys, "three-3")) == ["step"]
    assert main(["logs"]) == 2
    assert "several stacks have logs here (local, other); choose one with --stack" in capsys.readouterr().err


def test_an_age_and_a_time_name_the_same_moment() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert moment("1.5h", now) == now - timedelta(minutes=90) == moment("2026-01-01T10:30:00+00:00", now)
    with pytest.raises(ConfigError):
        moment("5 minutes", now)


async def test_a_live_stack_is_followed_until_it_ends_and_read_again_after(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With real NATS, Valkey and a worker's own lines, the last of them from a crash."""
    addresses = {"api_url": "", "nats_url": "", "redis_url": "", "data": ""}
    state = StackState(name="local", supervisor_pid=os.getpid(), **addresses, ports={}, pids={}, logs={})
    services = [nats(folder.parent), valkey("valkey", free_port(), folder.parent / "valkey"), worker()]
    async with supervised(services, folder):
        write_state(folder.parent, state)
        command = [sys.executable, "-m", "sluice.cli", "logs", "--follow", "--json"]
        following = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert following.stdout is not None
        live = [json.loads(await following.stdout.readline())]
        while "torn" not in str(live[-1]):
            live.append(json.loads(await following.stdout.readline()))
    (folder.parent / "stack.json").unlink()
    async with asyncio.timeout(20):
        rest, _ = await following.communicate()
    assert following.returncode == 0
    assert {"nats", "valkey", "rollout-0"} <= {entry["process"] for entry in live}
    assert "Initiating Shutdown..." in events([json.loads(text) for text in rest.splitlines()])

    one = shown(capsys, "one-1")
    assert [(entry["event"], entry["group"], entry["policy_version"]) for entry in one] == [
        ("prompt_handed_back", 7, "v3.1")
    ]
    assert one[0]["service"] == "rollout" and one[0]["engine"] == "http://***@host"
    crash = next(entry for entry in shown(capsys, "--level", "critical") if entry["event"] == "crashed")
    assert "ValueError: torn" in str(crash["exception"])
    assert "plain words" in events(shown(capsys, "--service", "rollout"))


def nats(folder: Path) -> Service:
    monitor = free_port()
    argv = (nats_server(), "-a", "127.0.0.1", "-p", str(free_port()), "-m", str(monitor), "-js", "-sd", str(folder))
    return Service("nats", (Command("nats", argv, LOGS_IN_UTC),), (HttpHealth(monitor, "/healthz"),))


def worker() -> Service:
    """Says its lines, dies, and waits for nobody: the stack goes on without it."""
    script = f"{sys.executable} -c '{WORKER}' || sleep 60"
    return Service("rollout-0", (Command("rollout-0", ("/bin/sh", "-c", script)),), ())


def test_a_log_that_gets_too_long_moves_aside_and_loses_no_line(tmp_path: Path) -> None:
    """The writer appends for ever to one open file, as a service does."""
    reader, seen = LogReader(tmp_path), 0
    with log_file(tmp_path, "busy").open("ab", buffering=0) as file:
        for n in range(300):
            file.write(line("10:00:00", "tick", n=n).encode())
            if n % 10 == 9:
                seen += len(list(reader.read()))
                bound(tmp_path, "busy", most_bytes=2000)
    assert seen == 300
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"busy.log", "busy.older.log"} and max(sizes.values()) < 4000
    kept = [entry.fields["n"] for entry in LogReader(tmp_path).read()]
    assert kept == list(range(300 - len(kept), 300))


def test_a_new_start_keeps_the_log_of_the_one_before_and_a_reader_goes_on(tmp_path: Path) -> None:
    log_file(tmp_path, "p").write_text(line("10:00:00", "first"))
    reader = LogReader(tmp_path)
    assert [entry.event for entry in reader.read()] == ["first"]
    set_aside(tmp_path, "p")
    log_file(tmp_path, "p").write_text(line("10:00:01", "second"))
    assert [entry.event for entry in reader.read()] == ["second"]
    assert [entry.event for entry in LogReader(tmp_path).read()] == ["first", "second"]


async def test_the_supervisor_keeps_the_logs_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(log_files, "MOST_LOG_BYTES", 1000)
    older = tmp_path / "chatty.older.log"
    async with supervised([shell("chatty", "while :; do echo some words; sleep 0.001; done")], tmp_path):
        await until(older.exists)
        await until(lambda: log_file(tmp_path, "chatty").stat().st_size > 0)


def test_a_service_writes_json_into_a_file_and_for_people_on_a_terminal() -> None:
    command = [sys.executable, "-c", WORKER]
    filed = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False).stderr
    first, second = (json.loads(text) for text in filed.splitlines()[:2])
    assert list(first) == ["timestamp", "level", "service", "event"]
    assert list(second)[:7] == ["timestamp", "level", "service", "event", "run", "group", "policy_version"]

    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    terminal = b"".join(iter(lambda: _read(ours), b"")).decode()
    process.wait()
    os.close(ours)
    assert "worker_started" in terminal and "{" not in terminal.splitlines()[0]
    assert "ValueError: torn" in terminal.splitlines()[-1]
    assert "secret" not in filed + terminal


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what a terminal says when nobody writes to it any more
        return b""
