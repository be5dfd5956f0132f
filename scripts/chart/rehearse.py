"""Rehearse an installation: run what the rendered pods would run, as processes of this machine, until the run is over.

    python -m chart.rehearse < resources.yaml

Commands, variables, secrets, configuration files, init containers and the pause before the end are the chart's; names,
ports and mounted folders become those of this machine. What only a cluster has (images, probes, volumes, networks) is
not rehearsed. For values of one node without GPUs. Exit code 1 when the run does not succeed or a service ends badly.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sluice.client import RunsClient
from sluice.errors import SluiceError
from sluice.local.binaries import nats_server, valkey_server
from sluice.local.services import EXIT_CONFIGURATION
from sluice.types import RunState
from sluice.views import RunView

Resource = dict[str, Any]
MAKES_PODS = ("StatefulSet", "Deployment", "Job")
DEADLINE_SECONDS = 600.0
END_SECONDS = 60.0
RENDEZVOUS_PORT = "29400"
"""Of torchrun's agents, who alone use it: no container lists it."""
PORT = re.compile(r"(?:[\w.-]+|0\.0\.0\.0):(\d{4,5})\b")


@dataclass
class Rehearsal:
    """Everything of one installation: its resources, the folder that stands for its volumes, and its processes."""

    resources: Sequence[Resource]
    folder: Path
    ports: dict[str, str] = field(default_factory=dict)
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    """By pod and container, as they are now."""
    refusal: str = ""
    """Why a Job's pod ended for good."""
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    def pods(self) -> list[tuple[str, Resource]]:
        made = [resource for resource in self.resources if resource["kind"] in MAKES_PODS]
        return [(resource["metadata"]["name"], resource["spec"]["template"]) for resource in made]

    def prepare(self) -> None:
        """Choose a port of this machine for each of the pods', and lay out what they mount."""
        containers = [container for _, pod in self.pods() for container in pod["spec"]["containers"]]
        opened = [str(port["containerPort"]) for container in containers for port in container.get("ports", [])]
        for port in (*opened, RENDEZVOUS_PORT):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[port] = str(free.getsockname()[1])
        for path in ("assets", "data", "cache", "streams", "run/nats", "logs", "etc/sluice/scripts", "etc/sluice/run"):
            (self.folder / path).mkdir(parents=True)
        for config in (resource for resource in self.resources if resource["kind"] == "ConfigMap"):
            for name, text in config["data"].items():
                place = {".py": "etc/sluice/scripts", ".toml": "etc/sluice/run"}.get(Path(name).suffix, "etc/nats")
                (self.folder / place).mkdir(parents=True, exist_ok=True)
                (self.folder / place / name).write_text(self.here(text) if name != "run.toml" else text)

    def here(self, text: str) -> str:
        """`text` with ports and folders of this machine in the place of the pods'."""
        for path in ("assets", "data", "cache", "streams", "run/nats", "etc/sluice", "etc/nats"):
            text = re.sub(rf"(?<![\w/.])/{path}(?=[/\"]|$)", str(self.folder / path), text)
        if text in self.ports:
            return self.ports[text]
        text = re.sub(r"[\w.-]+\.svc\.cluster\.local(?!:)", "127.0.0.1", text)
        return PORT.sub(lambda match: f"127.0.0.1:{self.ports[match[1]]}" if match[1] in self.ports else match[0], text)

    def variables(self, container: Resource) -> dict[str, str]:
        found: dict[str, str] = {}
        for entry in container.get("env", []):
            value = str(entry["value"]) if "value" in entry else self._looked_up(entry["valueFrom"])
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found.get(match[1], match[0]), value)
        return {name: self.here(value) for name, value in found.items()}

    def _looked_up(self, source: Resource) -> str:
        if "fieldRef" in source:
            return "sluice-pod-0"
        wanted = source["secretKeyRef"]
        secrets = {r["metadata"]["name"]: r["data"] for r in self.resources if r["kind"] == "Secret"}
        return base64.b64decode(secrets[wanted["name"]][wanted["key"]]).decode()

    async def start(self, name: str, container: Resource) -> asyncio.subprocess.Process:
        """Start a container's command; its output goes to a file of its name."""
        variables = self.variables(container)
        words = [str(word) for word in (*container["command"], *container.get("args", []))]
        words = [self.here(re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), w)) for w in words]
        programs = {"python": sys.executable, "nats-server": nats_server(), "redis-server": valkey_server()}
        words = [programs.get(word, word) for word in words]  # not the first alone: a shell may start it
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with (self.folder / "logs" / name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *words, env={"PATH": path} | variables, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    async def run_pod(self, name: str, pod: Resource) -> None:
        """Init containers one after the other, then the containers; they are started again as a kubelet would."""
        for container in pod["spec"].get("initContainers", []):
            while await (await self.start(f"{name}.{container['name']}", container)).wait():
                await asyncio.sleep(1)
        await asyncio.gather(*(self._keep(name, container, pod) for container in pod["spec"]["containers"]))

    async def _keep(self, name: str, container: Resource, pod: Resource) -> None:
        once = pod["spec"].get("restartPolicy", "Always") != "Always"
        while True:
            process = self.running[f"{name}.{container['name']}"] = await self.start(
                f"{name}.{container['name']}", container
            )
            code = await process.wait()
            if once and code == 0:
                return
            if once and code == EXIT_CONFIGURATION:
                said = (self.folder / "logs" / f"{name}.{container['name']}").read_text(encoding="utf-8")
                self.refusal = f"{name}: {said.strip().splitlines()[-1]}"
                return
            await asyncio.sleep(1)

    async def end_rollout(self) -> list[int]:
        """What a cluster does to a rollout pod; exit codes of the worker, of the engine's pause and of the engine."""
        (name, pod) = next((name, pod) for name, pod in self.pods() if name.endswith("-rollout"))
        worker, engine = (self.running[f"{name}.{container}"] for container in ("rollout", "engine"))
        pause = next(c for c in pod["spec"]["containers"] if c["name"] == "engine")["lifecycle"]["preStop"]["exec"]
        words = [self.here(word) for word in pause["command"]]
        words[-1] = re.sub(r"(/dev/tcp/127\.0\.0\.1/)(\d+)", lambda m: m[1] + self.ports[m[2]], words[-1])
        pausing = await asyncio.create_subprocess_exec(*words)
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(END_SECONDS):
            codes = [await worker.wait(), await pausing.wait()]
            engine.send_signal(signal.SIGTERM)
            return [*codes, await engine.wait()]

    async def kill(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def follow(rehearsal: Rehearsal) -> RunState:
    """Wait until the run that a Job of the chart has submitted is over."""
    secret = next(resource for resource in rehearsal.resources if resource["kind"] == "Secret")
    token = base64.b64decode(secret["data"]["api-token"]).decode()
    async with RunsClient(f"http://127.0.0.1:{rehearsal.ports['8000']}", token) as client:
        shown = ""
        while not rehearsal.refusal:
            for run in await _runs(client):
                told = f"rehearsal: {run.id}: {run.state}"
                if told != shown:
                    print(told, flush=True)
                    shown = told
                if run.state.terminal:
                    return run.state
            await asyncio.sleep(1)
    raise SluiceError(rehearsal.refusal)


async def _runs(client: RunsClient) -> Sequence[RunView]:
    try:
        return await client.runs()
    except SluiceError:
        return ()  # the API is not there yet


async def rehearse(rehearsal: Rehearsal) -> int:
    rehearsal.prepare()
    pods = [asyncio.create_task(rehearsal.run_pod(name, pod)) for name, pod in rehearsal.pods()]
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            state = await follow(rehearsal)
            smoke = next(resource for resource in rehearsal.resources if resource["kind"] == "Pod")
            asked = await (await rehearsal.start("smoke", smoke["spec"]["containers"][0])).wait()
        for pod in pods:
            pod.cancel()
        codes = await rehearsal.end_rollout()
    finally:
        for pod in pods:
            pod.cancel()
        await asyncio.gather(*pods, return_exceptions=True)
        await rehearsal.kill()
    print((rehearsal.folder / "logs" / "smoke").read_text(), end="")
    print(f"rehearsal: the run has {state}; worker, pause and engine ended with {codes}")
    # A web server that was asked to end says so with the signal's own code.
    return int(state is not RunState.SUCCEEDED or asked != 0 or codes not in ([0, 0, 0], [0, 0, -signal.SIGTERM]))


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of what ends the processes
    resources = [resource for resource in yaml.safe_load_all(sys.stdin) if resource]
    with tempfile.TemporaryDirectory(prefix="sluice-rehearsal-") as folder:
        try:
            return asyncio.run(rehearse(Rehearsal(resources, Path(folder))))
        except (SluiceError, TimeoutError) as error:
            print(f"rehearsal: {str(error) or f'not over within {DEADLINE_SECONDS:g} s'}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
