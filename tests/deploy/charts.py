"""The Helm chart as Helm renders it: resources, containers, and what their variables come to."""

from __future__ import annotations

import base64
import functools
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "k8s" / "sluice"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
OPTIONS = sorted((Path(__file__).parent / "values").glob("*.yaml"))
SETS = {"defaults": (), **{path.stem: ("--values", str(path)) for path in (*EXAMPLES, *OPTIONS)}}
EVERY_SET = pytest.mark.parametrize("arguments", SETS.values(), ids=SETS)
NAMESPACE = "training"
POD_NAME = "sluice-pod-0"

Resource = dict[str, Any]


class HelmError(Exception):
    """What Helm said on standard error."""


@functools.cache
def helm() -> str:
    """Path of a real Helm. Raises: HelmError: there is none, and none can be fetched; the line says what to do."""
    done = subprocess.run([ROOT / "scripts" / "tools" / "helm.sh"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout.strip()


def run_helm(command: str, *arguments: str) -> str:
    """Standard output of a Helm command. Raises: HelmError: what it said, when it failed."""
    done = subprocess.run([helm(), command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stdout + done.stderr)
    return done.stdout


@dataclass(frozen=True)
class Rendered:
    """All resources that one set of values gives."""

    resources: tuple[Resource, ...]

    def get(self, kind: str, name: str) -> Resource:
        """The one resource of that kind and name. Raises: KeyError: there is none."""
        for resource in self.of_kind(kind):
            if resource["metadata"]["name"] == name:
                return resource
        raise KeyError(f"{kind} {name}")

    def of_kind(self, kind: str) -> list[Resource]:
        return [resource for resource in self.resources if resource["kind"] == kind]

    def pods(self) -> Iterator[tuple[str, Resource]]:
        """(component, pod template) of everything that makes pods."""
        for resource in self.resources:
            template = _pod_template(resource)
            if template is not None:
                yield template["metadata"]["labels"]["app.kubernetes.io/component"], template

    def pod(self, component: str) -> Resource:
        return dict(self.pods())[component]

    def container(self, component: str, name: str = "") -> Resource:
        containers = self.pod(component)["spec"]["containers"]
        return next(c for c in containers if c["name"] == (name or component))

    def environment(self, container: Resource) -> dict[str, str]:
        """Variables of a container as its process sees them, secrets read and `$(NAME)` put in."""
        found: dict[str, str] = {}
        for entry in container.get("env", []):
            value = entry.get("value") if "value" in entry else self._looked_up(entry["valueFrom"])
            found[entry["name"]] = expand(str(value), found)
        return found

    def _looked_up(self, source: Resource) -> str:
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            return POD_NAME
        reference = source["secretKeyRef"]
        data = self.get("Secret", reference["name"])["data"]
        return base64.b64decode(data[reference["key"]]).decode()


def expand(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` replaced, as a kubelet does it: an unknown name stays as it is."""
    return re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda match: variables.get(match[1], match[0]), text)


@functools.cache
def render(*arguments: str) -> Rendered:
    """The chart with `--values` and `--set` arguments of Helm. Raises: HelmError: Helm refuses the values."""
    text = run_helm("template", "sluice", str(CHART), "--namespace", NAMESPACE, *arguments)
    return Rendered(tuple(resource for resource in yaml.safe_load_all(text) if resource))


def render_example(name: str, *arguments: str) -> Rendered:
    return render("--values", str(CHART / "examples" / f"{name}.yaml"), *arguments)


def containers(rendered: Rendered) -> list[tuple[str, Resource]]:
    """(component/name, container) of every container, those that run first included."""
    found = []
    for component, pod in rendered.pods():
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            found.append((f"{component}/{container['name']}", container))
    return found


def command_line(container: Resource) -> Sequence[str]:
    return [*container.get("command", []), *(str(argument) for argument in container.get("args", []))]


def _pod_template(resource: Resource) -> Resource | None:
    match resource["kind"]:
        case "Pod":
            return resource
        case "Deployment" | "StatefulSet" | "Job":
            template: Resource = resource["spec"]["template"]
        case "JobSet":
            template = resource["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        case "LeaderWorkerSet":
            template = resource["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        case _:
            return None
    return template
