"""A Prometheus server of one's own: it scrapes a local stack by the jobs and rules that a deployment has."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from sluice.local.ports import LOOPBACK, free_ports

ROOT = Path(__file__).resolve().parents[2]
DEPLOYED = ROOT / "deploy" / "observability" / "prometheus"
START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Series:
    """One time series of an answer: its labels, and pairs of Unix time and value."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


@dataclass
class Prometheus:
    """Runs while it is entered. Addresses are `host:port`, by the service that listens there."""

    folder: Path
    targets: Mapping[str, Sequence[str]]
    scrape_seconds: float = 1.0
    rules: Path = DEPLOYED / "rules"
    _process: subprocess.Popen[bytes] = field(init=False)
    _http: httpx.Client = field(init=False)

    def __enter__(self) -> Prometheus:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()), encoding="utf-8")
        address = f"{LOOPBACK}:{free_ports(1)[0]}"
        self._http = httpx.Client(base_url=f"http://{address}", timeout=30, trust_env=False)
        command = [
            str(program("prometheus")),
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        with (self.folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait(timeout=30)

    def query(self, expr: str) -> list[Series]:
        """What an expression gives now.

        Raises:
            ValueError: Prometheus refuses the expression; the text is its own.
        """
        return [Series(s["metric"], [_point(s["value"])]) for s in self._ask("query", query=expr)]

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """What an expression gives from `start` to `end`, Unix times, every `step` seconds.

        Raises:
            ValueError: as for `query`.
        """
        answer = self._ask("query_range", query=expr, start=start, end=end, step=step)
        return [Series(s["metric"], [_point(pair) for pair in s["values"]]) for s in answer]

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that are pending or firing."""
        return list(self._http.get("/api/v1/alerts").json()["data"]["alerts"])

    def _ask(self, what: str, **parameters: str | float) -> list[dict[str, Any]]:
        answer = self._http.post(f"/api/v1/{what}", data=parameters).json()
        if answer["status"] != "success":
            raise ValueError(f"{parameters['query']}: {answer['error']}")
        return list(answer["data"]["result"])

    def _wait_until_ready(self) -> None:
        """Raises: RuntimeError: it has ended, or is not ready in time; the text has the end of its log."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(httpx.TransportError):  # it does not listen yet
                if self._http.get("/-/ready").status_code == 200:
                    return
            time.sleep(0.05)
        self._process.kill()
        log = (self.folder / "prometheus.log").read_text(encoding="utf-8")
        raise RuntimeError(f"Prometheus is not ready within {START_SECONDS:g} s: {log[-1000:]}")

    def _config(self) -> dict[str, Any]:
        """The deployed configuration, with addresses of this machine in the place of DNS names."""
        config: dict[str, Any] = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text(encoding="utf-8"))
        interval = f"{round(self.scrape_seconds * 1000)}ms"
        config["global"] = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
        config["rule_files"] = [str(self.rules / "*.yml")]
        del config["alerting"]
        for job in config["scrape_configs"]:
            service = job["job_name"].removeprefix("sluice-")
            del job["dns_sd_configs"]
            job["static_configs"] = [{"targets": list(self.targets.get(service, ()))}]
        return config


def program(name: str) -> Path:
    """Path of prometheus, promtool, alertmanager or amtool; fetched when this machine lacks it."""
    script = ROOT / "scripts" / "tools" / "prometheus.sh"
    found = subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True)
    return Path(found.stdout.strip()) / name


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
