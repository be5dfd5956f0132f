"""What a person has to mend is one line that says how, and exit code 2: before anything was ready, and only once."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.environment import read_settings
from sluice.errors import ConfigError
from sluice.storage import check_writable, disk_fault
from tests.deploy.processes import SECONDS, Processes, readiness, refused
from tests.local.test_up import up
from tests.servers import free_port

CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


@dataclass(frozen=True, slots=True)
class Case:
    """A service, what is wrong with its environment, and how its one line begins."""

    service: str
    environment: dict[str, str]
    says: str


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


def without_rights_of_root() -> None:
    """Run in a child before its program: file permissions count, for root too."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    """A port of this machine on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


def cases(taken: str, plain_nats: str, folder: Path) -> dict[str, Case]:
    absent, empty, file = folder / "absent", folder / "empty", folder / "file"
    empty.touch()
    file.write_text("in the way")
    in_use = "=127.0.0.1: Address already in use; choose another"
    return {
        "a NATS address without a scheme": Case(
            "trainer",
            {"SLUICE_NATS_URL": "127.0.0.1:4222"},
            "SLUICE_NATS_URL=127.0.0.1:4222: must begin with nats:// or tls:// or ws:// or wss://, like nats://HOST:4222",
        ),
        "a NATS address with a port that is none": Case(
            "trainer",
            {"SLUICE_NATS_URL": "nats://127.0.0.1:99999"},
            "SLUICE_NATS_URL=nats://127.0.0.1:99999: Port out of range",
        ),
        "a Redis address without a scheme": Case(
            "rollout",
            {"SLUICE_REDIS_URL": "localhost:6379"},
            "SLUICE_REDIS_URL=localhost:6379: must begin with redis://",
        ),
        "a NATS server without JetStream": Case(
            "rollout",
            {"SLUICE_NATS_URL": plain_nats, "SLUICE_CACHE_DIR": str(folder / "cache")},
            f"SLUICE_NATS_URL={plain_nats}: the NATS server has no JetStream; start it with --jetstream",
        ),
        "a secret whose file is missing": Case(
            "trainer",
            {"SLUICE_NATS_URL_FILE": str(absent)},
            f"SLUICE_NATS_URL_FILE={absent}: No such file or directory; mount the secret there",
        ),
        "a secret whose file is empty": Case(
            "rollout",
            {"SLUICE_ENGINE_API_KEY_FILE": str(empty)},
            f"SLUICE_ENGINE_API_KEY_FILE={empty}: the file is empty; write the secret into it",
        ),
        "an API for everybody without a token": Case(
            "coordinator", {"SLUICE_API_HOST": "0.0.0.0"}, "SLUICE_API_HOST=0.0.0.0"
        ),
        "the port of the API in use": Case(
            "coordinator", {"SLUICE_API_PORT": taken}, f"SLUICE_API_PORT={taken} on SLUICE_API_HOST{in_use}"
        ),
        "the port of the metrics in use": Case(
            "reward", {"SLUICE_METRICS_PORT": taken}, f"SLUICE_METRICS_PORT={taken} on SLUICE_METRICS_HOST{in_use}"
        ),
        "the port of the service in use": Case(
            "reward",
            {"SLUICE_REWARD_BIND": f"127.0.0.1:{taken}"},
            f"SLUICE_REWARD_BIND=127.0.0.1:{taken}: Address already in use; choose another",
        ),
        "a data folder that is a file": Case(
            "trainer",
            {"SLUICE_DATA_DIR": str(file)},
            f"SLUICE_DATA_DIR={file}: File exists; remove the file that is in the way",
        ),
        "a folder where nobody can make one": Case(
            "trainer",
            {"SLUICE_DATA_DIR": "/proc/x"},
            "SLUICE_DATA_DIR=/proc/x: No such file or directory; choose another folder",
        ),
        "a GPU that is not there": Case(
            "trainer",
            {"SLUICE_TRAINER_DEVICE": "cuda", "SLUICE_DATA_DIR": str(folder / "data")},
            "SLUICE_TRAINER_DEVICE=cuda: rank 0 wants GPU 0 of this host, torch sees 0; give it more GPUs",
        ),
    }


def test_each_fault_of_a_deployment_is_one_line_that_says_what_to_change(
    taken: str, processes: Processes, tmp_path: Path
) -> None:
    port = free_port()
    processes.nats(port)
    wrong = cases(taken, f"nats://127.0.0.1:{port}", tmp_path)
    started = {name: processes.service(case.service, case.environment) for name, case in wrong.items()}
    for name, case in wrong.items():
        said = refused(case.service, started[name])
        assert said.startswith(case.says), name


def test_a_service_is_never_ready_before_it_refuses(processes: Processes) -> None:
    """Also when it refuses late: the port of its metrics is open long before its verifiers turn out not to exist."""
    port = free_port()
    environment = {"SLUICE_REWARD_VERIFIERS": "mine=nowhere:f", "SLUICE_METRICS_PORT": str(port)}
    process = processes.service("reward", {**environment, "SLUICE_REWARD_BIND": "127.0.0.1:0"})
    answers = set()
    while process.poll() is None:
        answers.add(readiness(port))
        time.sleep(0.02)
    assert "'mine=nowhere:f' cannot be imported" in refused("reward", process)
    assert 503 in answers and 200 not in answers


def test_a_folder_that_may_not_be_written_is_named_with_the_knob(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o500)
    process = processes.service("trainer", {"SLUICE_DATA_DIR": str(tmp_path / "data")}, without_rights_of_root)
    said = refused("trainer", process)
    assert said.startswith(f"SLUICE_DATA_DIR={tmp_path / 'data'}: Permission denied; give this user the right to write")


def test_a_disk_that_takes_no_more_is_named_with_the_knob(processes: Processes, tmp_path: Path) -> None:
    """A small file system where this user may mount one; elsewhere a limit on the size of files, as quotas have."""
    folder, limit = tmp_path / "cache", 4096
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={16 * limit}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        settle = None if mounted else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        said = refused("rollout", processes.service("rollout", {"SLUICE_CACHE_DIR": str(folder)}, settle))
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
    why = "No space left on device; make room on it" if mounted else "File too large; raise the limit"
    assert said.startswith(f"SLUICE_CACHE_DIR={folder}: {why}")


def test_only_what_a_disk_refused_counts_as_a_fault_of_the_disk() -> None:
    """A disk that fills up under a running service ends it as one that was full at its start."""
    assert disk_fault(OSError(errno.ENOSPC, "No space left on device")) == (
        "a file: No space left on device; make room on it"
    )
    denied = PermissionError(errno.EACCES, "Permission denied", "/data/x")
    assert disk_fault(denied) == "/data/x: Permission denied; give this user the right to write there"
    assert disk_fault(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) is None
    assert disk_fault(PermissionError(errno.EACCES, "Permission denied")) is None  # a port, not a file


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "data", "KNOB")
    assert list((tmp_path / "new" / "data").iterdir()) == []


def test_a_stack_stops_at_a_wrong_setting_and_repeats_the_services_line(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEASE_SECONDS", "0")
    with up(tmp_path, tiny_model, "wrong") as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert errors.splitlines()[-1] == "sluice: sluice-coordinator: SLUICE_LEASE_SECONDS=0: must be at least 1"
    assert errors.count("SLUICE_LEASE_SECONDS") == 1  # it was not started again and again


def test_a_stack_whose_folder_may_not_be_written_says_so(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "artifacts").write_text("in the way")
    with up(tmp_path, tiny_model, "local") as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert errors.startswith("sluice: --name=artifacts/local: ") and errors.count("\n") == 1


def test_no_line_shows_a_password(processes: Processes, tmp_path: Path) -> None:
    """A server that asks for a password, once with a wrong one and once with the right one, then killed."""
    port = free_port()
    server = processes.nats(port, "-js", "-sd", str(tmp_path), "--user", "sluice", "--pass", "right-secret")
    secret = tmp_path / "nats_url"
    secret.write_text(f"nats://sluice:right-secret@127.0.0.1:{port}\n")
    address = f"nats://sluice:wrong-secret@127.0.0.1:{port}"
    common = {"SLUICE_CACHE_DIR": str(tmp_path / "cache"), "SLUICE_NATS_DEADLINE_SECONDS": "5"}
    wrong = processes.service("rollout", {**common, "SLUICE_NATS_URL": address})
    right = processes.service("rollout", {**common, "SLUICE_NATS_URL_FILE": str(secret)})
    said = refused("rollout", wrong)
    assert said.startswith(f"SLUICE_NATS_URL=nats://***@127.0.0.1:{port}: ") and "Authorization" in said
    assert right.stderr is not None
    assert any("worker_started" in line for line in right.stderr)
    server.kill()
    server.wait()
    lost = next(line for line in right.stderr if "nats_lost" in line)
    assert f'"url": "nats://***@127.0.0.1:{port}"' in lost


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SLUICE_LEASE_SECONDS", "soon", "must be a number"),
        ("SLUICE_STREAM_REPLICAS", "9", "must be at most 5"),
        ("SLUICE_STREAM_REPLICAS", "1.5", "must be a whole number"),
        ("SLUICE_ALLOW_REMOTE_CODE", "perhaps", "must be true or false"),
        ("SLUICE_LOG_LEVEL", "loud", "must be one of 'debug', 'info', 'warning', 'error' or 'critical'"),
        ("SLUICE_NATS_URL", "nats://", "'nats://' is not of the form nats://HOST:4222"),
        ("SLUICE_REDIS_URL", "redis://h/x", "is not of the form redis://HOST:6379/0"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_plain_words(name: str, value: str, words: str) -> None:
    from services.coordinator.config import ENVIRONMENT, CoordinatorConfig

    with pytest.raises(ConfigError, match=f"^{re.escape(f'{name}={value}: {words}')}$"):
        read_settings(CoordinatorConfig, ENVIRONMENT, {name: value})
