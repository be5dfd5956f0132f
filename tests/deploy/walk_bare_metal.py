"""docs/bare-metal.md, executed: its commands word for word, and a whole Slurm job with stand-ins for srun and scontrol.

`make bare-metal` runs it. It is no part of `make test`: each part trains for real, with two ranks that torchrun starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.local.binaries import nats_server, valkey_server
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "bare-metal.md"
SECONDS = 240.0
PORTS = ("4222", "6379", "50051", "8080", "30000", "29500")

pytestmark = [pytest.mark.usefixtures("tiny_model"), pytest.mark.timeout(600)]


@contextmanager
def started(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a session of its own, of which nothing is left afterwards."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        with contextlib.suppress(ProcessLookupError):  # all of them are gone
            until(lambda: os.killpg(process.pid, 0), "the end of what the page has started")


def of_job(name: str) -> list[int]:
    """Processes that have inherited the environment of this walk."""
    mark, found = f"WALK={name}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue  # it ended in this moment, or is another user's
    return found


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.2)


def plain_environment(name: str, **added: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "SLURM_"))}
    return {**plain, "WALK": name, "OMP_NUM_THREADS": "1", **added}


def commands(folder: Path) -> list[str]:
    """The blocks of the first section, with free ports, and `folder` in the place of the one that they write."""
    section = PAGE.read_text(encoding="utf-8").split("## One host, by hand")[1].split("\n## ")[0]
    section = section.replace("$PWD/artifacts/by-hand", str(folder)).replace("artifacts/by-hand", str(folder))
    for port in PORTS:
        section, count = re.subn(rf"\b{port}\b", str(free_port()), section)
        assert count, f"the page does not name port {port}"
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def test_the_commands_of_the_page_train_a_run_with_two_ranks(tmp_path: Path) -> None:
    shims = tmp_path / "bin"
    shims.mkdir()
    (shims / "redis-server").symlink_to(valkey_server())
    environment = plain_environment("page", PATH=f"{os.environ['PATH']}:{shims}")
    settings, *terminals, last = commands(tmp_path)
    assert len(terminals) == 7
    services = "\n".join(f"({block.strip()}) &" for block in terminals)
    with started(["bash", "-c", f"{settings}\n{services}\nwait"], tmp_path / "log", environment):
        script = f"{settings}\nuntil sluice runs >/dev/null 2>&1; do sleep 1; done\n{last}"
        trained = subprocess.run(
            ["bash", "-c", script],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert trained.returncode == 0, trained.stderr + (tmp_path / "log").read_text()
    assert "step 20/20" in trained.stdout and "is succeeded" in trained.stdout


def slurm(folder: Path, **settings: str) -> dict[str, str]:
    """A job of two nodes, both of which are this machine."""
    ports = ("NATS", "REDIS", "API", "REWARD", "WEIGHTS", "MASTER", "FIRST_ENGINE")
    return plain_environment(
        folder.name,
        **{f"SLUICE_{name}_PORT": str(free_port()) for name in ports},
        PATH=f"{ROOT / 'tests/deploy/slurm'}:{os.environ['PATH']}",
        SLURM_JOB_ID="77",
        SLURM_JOB_NODELIST="127.0.0.1,localhost",
        SLURM_SUBMIT_DIR=str(ROOT),
        SLUICE_HOME=str(folder),
        SLUICE_PYTHON=sys.executable,
        SLUICE_NATS_SERVER=nats_server(),
        SLUICE_REDIS_SERVER=valkey_server(),
        SLUICE_LISTEN="127.0.0.1",
        SLUICE_ENGINE="cpu",
        SLUICE_ENGINES_PER_NODE="1",
        SLUICE_TRAINER_RANKS="2",
        SLUICE_MODEL="models/tiny",
        **settings,
    )


def job(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "job.log").open("ab") as output:
        return subprocess.Popen(
            ["bash", "deploy/slurm/sluice.sbatch"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The job's folder; whatever a job left running is killed."""
    folder = tmp_path / "job"
    folder.mkdir()
    yield folder
    for pid in of_job(folder.name):
        os.kill(pid, signal.SIGKILL)


def test_a_slurm_job_is_drained_requeued_and_goes_on_where_it_was(home: Path, tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    text = (ROOT / "configs" / "tiny.toml").read_text().replace("total_steps = 20", "total_steps = 40")
    run_file.write_text(text)
    environment = slurm(home, SLUICE_RUN_FILE=str(run_file))

    first = job(home, environment)
    until(lambda: "step 3/40" in (home / "job.log").read_text(), "three training steps")
    first.send_signal(signal.SIGUSR1)
    first.wait(timeout=SECONDS)
    assert (first.returncode, (home / "requeued").read_text()) == (0, "77\n")
    until(lambda: not of_job(home.name), "everything of the first start has ended")
    drained = (home / "job.log").read_text()
    assert re.search(r"^draining run (\S+)$", drained, re.MULTILINE) and ": paused (Slurm ends job 77)" in drained

    second = job(home, {**environment, "SLURM_RESTART_COUNT": "1"})
    second.wait(timeout=SECONDS)
    log = (home / "job.log").read_text()
    assert second.returncode == 0, log
    until(lambda: not of_job(home.name), "everything of the second start has ended")
    assert len(set(re.findall(r"^run (\S+); its logs", log, re.MULTILINE))) == 1  # the same run both times
    restored = [entry for entry in lines(home / "logs" / "trainer-0.log", "run_claimed") if entry["rank"] == 0]
    assert restored[0]["k"] == 0 and restored[-1]["k"] >= 3 and restored[-1]["lineage"] > 1


def test_a_slurm_job_outlives_its_coordinator_and_whoever_watches_and_ends_with_its_run(home: Path) -> None:
    running = job(home, slurm(home, SLUICE_RUN_FILE="configs/tiny.toml"))
    until(lambda: "step 3/20" in said(running, home), "three training steps")
    for part in ("services.coordinator", "watch"):
        (pid,) = [pid for pid in of_job(home.name) if part in arguments(pid)]
        os.kill(pid, signal.SIGKILL)
    assert running.wait(timeout=SECONDS) == 0, (home / "job.log").read_text()
    log = (home / "job.log").read_text()
    assert "step 20/20" in log and "is succeeded" in log
    assert len(lines(home / "logs" / "coordinator.log", "run_claimed")) > 1
    until(lambda: not of_job(home.name), "everything of the job has ended")


def test_a_cancelled_slurm_job_ends_and_is_not_requeued(home: Path) -> None:
    cancelled = job(home, slurm(home, SLUICE_RUN_FILE="configs/tiny.toml"))
    until(lambda: "; its logs: " in said(cancelled, home), "a run")
    cancelled.send_signal(signal.SIGTERM)
    assert cancelled.wait(timeout=SECONDS) == 143
    assert not (home / "requeued").exists()
    until(lambda: not of_job(home.name), "everything of the job has ended")


def said(process: subprocess.Popen[bytes], home: Path) -> str:
    """The log of a job that is to go on."""
    text = (home / "job.log").read_text(encoding="utf-8")
    assert process.poll() is None, text
    return text


def arguments(pid: int) -> list[str]:
    """The command line of a process; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    return []


def test_a_wrong_setting_ends_the_job_with_the_services_line(home: Path) -> None:
    environment = slurm(home, SLUICE_RUN_FILE="configs/tiny.toml", SLUICE_LEASE_SECONDS="0")
    refused = job(home, environment)
    assert refused.wait(timeout=SECONDS) == 2
    last = (home / "job.log").read_text().splitlines()[-1]
    assert last.startswith("sluice-slurm: sluice-") and last.endswith("SLUICE_LEASE_SECONDS=0: must be at least 1")
    until(lambda: not of_job(home.name), "everything of the job has ended")


def lines(log: Path, event: str) -> list[dict[str, int]]:
    found = [json.loads(text) for text in log.read_text().splitlines() if text.startswith("{")]
    return [entry for entry in found if entry["event"] == event]
