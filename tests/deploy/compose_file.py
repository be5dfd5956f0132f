"""docker-compose.yml as Docker Compose itself resolves it, and as text."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
SERVICES = {
    "coordinator": ("coordinator",),
    "reward": ("reward-0", "reward-1"),
    "engine": ("engine-0", "engine-1"),
    "rollout": ("rollout-0", "rollout-1", "rollout-gpu"),
    "trainer": ("trainer", "trainer-gpu"),
}
"""Containers of each of our services."""
CONTAINERS = [(service, container) for service, containers in SERVICES.items() for container in containers]

THEIRS = ("nats", "redis", "prometheus", "alertmanager", "grafana", "sglang")
ONE_SHOT = ("secrets", "models", "demo", "cli")

Container = dict[str, Any]


@functools.cache
def resolved() -> dict[str, Container]:
    """Every service of every profile, with nothing set in the environment."""
    package = importlib.util.find_spec("compose")  # its console script ends with code 0 whatever happened
    assert package is not None and package.submodule_search_locations is not None
    program = f"{package.submodule_search_locations[0]}/docker-compose"
    command = [program, "--file", str(FILE), "--env-file", os.devnull, "--profile", "*", "config", "--format", "json"]
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=bare)
    services: dict[str, Container] = json.loads(done.stdout)["services"]
    return services


@functools.cache
def text() -> str:
    return FILE.read_text(encoding="utf-8")


def environment(container: str) -> dict[str, str]:
    """Variables that are set to something."""
    return {name: value for name, value in resolved()[container].get("environment", {}).items() if value}


def volumes(container: str) -> dict[str, tuple[str, bool]]:
    """Source and whether it is read-only, by the path in the container."""
    mounted = resolved()[container].get("volumes", [])
    return {v["target"]: (str(v["source"]), bool(v.get("read_only"))) for v in mounted}


def aliases(container: str) -> set[str]:
    """Names under which the others reach it."""
    network = resolved()[container].get("networks", {}).get("default") or {}
    return {container, *network.get("aliases", ())}


@functools.cache
def prometheus() -> Any:
    return yaml.safe_load((ROOT / "deploy/observability/prometheus/prometheus.yml").read_text(encoding="utf-8"))
