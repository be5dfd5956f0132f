"""What the chart brings along itself, run for real: the NATS cluster's configuration and the scripts of its pods."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from sluice.errors import ConfigError
from sluice.local.binaries import valkey_server
from sluice.transport.nats import Bus
from sluice.transport.streams import StreamLimits
from sluice.wire import subjects
from tests.deploy.charts import CHART, command_line, expand, render, render_example
from tests.servers import BIN, free_port, wait_for_port

FILES = CHART / "files"
SERVERS = 3


class Cluster:
    """The chart's NATS StatefulSet on this machine: its own configuration and variables, with other addresses."""

    def __init__(self, folder: Path) -> None:
        rendered = render("--set=nats.storage.sizeGiB=13,nats.rolloutsGiB=1")
        self._folder = folder
        self._conf = rendered.get("ConfigMap", "sluice-nats")["data"]["nats.conf"]
        self._variables = rendered.environment(rendered.container("nats"))
        self._url = rendered.environment(rendered.container("coordinator"))["SLUICE_NATS_URL"]
        self.clients = [free_port() for _ in range(SERVERS)]
        self._routes = [free_port() for _ in range(SERVERS)]
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The services' own URL, once for each server: a Service would lead to any of them."""
        return ",".join(self._url.replace("sluice-nats:4222", f"127.0.0.1:{port}") for port in self.clients)

    def start(self) -> None:
        for i in range(SERVERS):
            text = self._conf.replace("0.0.0.0:4222", f"127.0.0.1:{self.clients[i]}")
            text = text.replace("0.0.0.0:6222", f"127.0.0.1:{self._routes[i]}").replace("0.0.0.0:8222", "127.0.0.1:0")
            text = text.replace('"/streams"', f'"{self._folder}/{i}"').replace("/run/nats/", f"{self._folder}/{i}-")
            conf = self._folder / f"{i}.conf"
            conf.write_text(text)
            variables = self._variables | {"POD_NAME": f"sluice-nats-{i}", "NATS_ROUTES": self._local_routes()}
            command = [str(BIN / "nats-server"), "--config", str(conf)]
            self.processes.append(subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL))
        for port in self.clients:
            wait_for_port(port)

    def _local_routes(self) -> str:
        def here(match: re.Match[str]) -> str:
            return f"127.0.0.1:{self._routes[int(match[1])]}"

        return re.sub(r"sluice-nats-(\d)\.sluice-nats-headless:6222", here, self._variables["NATS_ROUTES"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.start()
    yield cluster
    for process in cluster.processes:
        process.kill()
        process.wait()


async def test_the_nats_cluster_keeps_every_stream_and_bucket_when_a_server_dies(cluster: Cluster) -> None:
    early = await Bus.connect(cluster.url, "a worker before the coordinator", deadline_seconds=30)
    await early.ensure_streams()
    await early.bucket(subjects.WORKERS_BUCKET)
    bus = await Bus.connect(cluster.url, "coordinator", deadline_seconds=30)
    await bus.ensure_streams(StreamLimits(rollouts_bytes=1 << 30, replicas=3))
    await bus.bucket(subjects.RUNS_BUCKET)
    kept = {str(info.config.name): info.config.num_replicas for info in await bus.js.streams_info()}
    assert kept == dict.fromkeys([*kept], 3)
    assert {"LEDGER", "ROLLOUTS", f"KV_{subjects.RUNS_BUCKET}", f"KV_{subjects.WORKERS_BUCKET}"} <= kept.keys()
    await early.close()
    await bus.publish(subjects.ledger("run"), b"before")
    cluster.processes[0].kill()
    assert await bus.publish(subjects.ledger("run"), b"after") == 2
    await bus.close()


async def test_nats_lets_in_nobody_without_the_password(cluster: Cluster) -> None:
    await (await Bus.connect(cluster.url, "one of ours", deadline_seconds=10)).close()
    with pytest.raises(ConfigError, match="no NATS server answers"):
        await Bus.connect(re.sub(r":[^:@]*@", ":guess@", cluster.url), "stranger", deadline_seconds=1)


def wait_for(*wanted: str, seconds: float, **variables: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys, wait_for; sys.exit(wait_for.wait(sys.argv[1:], {seconds}))"
    environment = {"PYTHONPATH": str(FILES), **variables}
    command = [sys.executable, "-c", code, *wanted]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_pod_waits_until_all_that_it_needs_is_there(tmp_path: Path, nats_url: str) -> None:
    (tmp_path / "marker").touch()
    address = nats_url.removeprefix("nats://")
    there = wait_for(
        "nats", f"file:{tmp_path}/marker", seconds=20, SLUICE_NATS_URL=f"tls://nobody:4222,nats://u:p@{address}"
    )
    assert (there.returncode, there.stdout) == (0, "")


def test_a_pod_that_waits_says_for_what_and_ends_with_one_line(tmp_path: Path) -> None:
    missing = wait_for(f"file:{tmp_path}/model", seconds=0.2)
    assert missing.returncode == 1
    assert missing.stdout.splitlines() == [
        f"wait_for: waiting for file:{tmp_path}/model",
        f"wait_for: file:{tmp_path}/model was not there within 0.2 s; look at what should provide it",
    ]


@pytest.mark.parametrize(
    "url",
    ["nats://u:SECRET/x@h:4222", "nats://u:1/SECRET@h:4222", "nats://u:SECRET#@h:4222", "tls://h:99999", "h1:4222", ""],
)
def test_a_pod_does_not_wait_for_a_server_that_no_url_names_and_tells_no_password(url: str) -> None:
    command = [sys.executable, str(FILES / "wait_for.py"), "nats"]
    variables = {"SLUICE_NATS_URL": f"nats://u:p@first:4222,{url}"}
    asked = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=20)
    assert (asked.returncode, asked.stderr) == (2, "")
    (line,) = asked.stdout.splitlines()
    assert "SLUICE_NATS_URL: server 2 is not given as nats://user:password@host:4222" in line
    assert "SECRET" not in line


def test_redis_asks_for_a_password_that_no_list_of_processes_shows(tmp_path: Path) -> None:
    rendered = render_example("laptop")
    container = rendered.container("redis")
    variables, port = rendered.environment(container), free_port()
    here = {"redis-server": valkey_server(), "6379": str(port)}
    words = [here.get(expand(word, variables), expand(word, variables)) for word in command_line(container)]
    words = [word.replace("/data/", f"{tmp_path}/") for word in words]
    assert variables["REDIS_PASSWORD"] not in " ".join(words)
    server = subprocess.Popen(words, env={"PATH": os.environ["PATH"], **variables}, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        shown = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert variables["REDIS_PASSWORD"] not in shown
        with Redis(port=port, password=variables["REDIS_PASSWORD"]) as ours:
            assert ours.ping()
        with Redis(port=port) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
    finally:
        server.terminate()
        server.wait()


def test_streams_are_full_before_their_disk_is() -> None:
    rendered = render("--set=nats.storage.sizeGiB=100")
    conf = rendered.get("ConfigMap", "sluice-nats")["data"]["nats.conf"]
    (limit,) = re.findall(r"max_file_store: (\d+)", conf)
    assert int(limit) == 95 * 2**30


def test_assets_are_prepared_once(tmp_path: Path) -> None:
    job = next(pod for component, pod in render_example("laptop").pods() if component == "prepare")
    step = job["spec"]["initContainers"][1]
    additions = tmp_path / "additions" / "tiny_addition.jsonl"

    def prepare() -> None:
        words = [str(word).replace("/assets", str(tmp_path)) for word in (*step["command"], *step["args"])]
        marker = next(entry["value"] for entry in step["env"] if entry["name"] == "MARKER")
        variables = {"MARKER": marker.replace("/assets", str(tmp_path)), "PATH": f"{BIN}:{os.environ['PATH']}"}
        subprocess.run(words, env=variables, check=True)

    prepare()
    rows = additions.read_text().splitlines()
    assert len(rows) == 100
    additions.write_text("changed by somebody")
    prepare()
    assert additions.read_text() == "changed by somebody"


def test_helm_test_says_who_does_not_answer(nats_url: str) -> None:
    """That it is content with what answers is shown by the rehearsal of `make chart-check`."""
    nobody = free_port()
    variables = {"SLUICE_API_URL": f"http://127.0.0.1:{nobody}", "SLUICE_API_TOKEN": "t", "SLUICE_NATS_URL": nats_url}
    command = [sys.executable, str(FILES / "smoke.py")]
    asked = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    (line,) = asked.stdout.splitlines()
    assert line.startswith(f"smoke: ask_api: NoServerError: no coordinator answers at http://127.0.0.1:{nobody}")
