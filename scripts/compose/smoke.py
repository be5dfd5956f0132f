"""What scripts/compose_smoke.sh looks at once the images are there: a stack comes up, trains, is watched, and goes.

Called with the command line of Docker Compose; everything else is in the environment that the shell script exports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx

UP_SECONDS = 600
RUN_SECONDS = 300.0
SCRAPE_SECONDS = 60.0
OURS = ("coordinator", "reward-0", "reward-1", "engine-0", "engine-1", "rollout-0", "rollout-1", "trainer")
THEIRS = ("nats", "redis", "prometheus", "alertmanager")
EVALUATED = {"v0.1", "v50.1", "v100.1", "v150.1"}
"""Policy versions that the run of scripts/compose_smoke.sh evaluates."""
WITHOUT_TORCH = ("coordinator", "reward-0", "rollout-0")
JOBS = {"sluice-coordinator": 1, "sluice-reward": 2, "sluice-rollout": 2, "sluice-engine": 2, "sluice-trainer": 1}
"""What Prometheus must find by the names of services, and how many of each."""


class SmokeError(Exception):
    """The stack is not as it should be; the text says where."""


class Stack:
    """The stack, through the command line of Docker Compose."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def call(self, *arguments: str) -> str:
        """Standard output. Raises: SmokeError: the command failed."""
        done = self.attempt(*arguments)
        if done.returncode:
            raise SmokeError(f"docker-compose {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, *arguments], capture_output=True, text=True, check=False)

    def containers(self) -> Iterator[dict[str, Any]]:
        for line in self.call("--profile", "*", "ps", "--all", "--format", "json").splitlines():
            yield json.loads(line)

    def state(self, service: str) -> dict[str, Any]:
        return next((c for c in self.containers() if c["Service"] == service), {})


def main() -> int:
    stack = Stack(sys.argv[1:])
    try:
        for look in (come_up, look_inside, train, look_at_metrics, refuse, go_down):
            started = time.monotonic()
            outcome = look(stack)
            print(f"compose-smoke: {outcome} ({time.monotonic() - started:.0f} s)", flush=True)
    except SmokeError as error:
        print(f"compose-smoke: {error}", file=sys.stderr)
        return 1
    print("compose-smoke: Grafana was not run: its image can only be had from a registry")
    return 0


def come_up(stack: Stack) -> str:
    """Every service starts in its order and is healthy."""
    stack.call("up", "--no-build", "--wait", "--wait-timeout", str(UP_SECONDS))
    healthy = {c["Service"] for c in stack.containers() if c["Health"] == "healthy"}
    if missing := {*OURS, *THEIRS} - healthy:
        raise SmokeError(f"docker-compose says that all is up, but {', '.join(sorted(missing))} is not healthy")
    return f"{len(healthy)} containers are up and healthy"


def look_inside(stack: Stack) -> str:
    """No service runs as root or can write to its own image; the light ones have no torch."""
    for service in OURS:
        user = stack.call("exec", "-T", service, "id", "-u").strip()
        if user != "10001":
            raise SmokeError(f"{service} runs as user {user}")
        if stack.attempt("exec", "-T", service, "touch", "/app/x", "/opt/sluice/x").returncode == 0:
            raise SmokeError(f"{service} can write to its own image")
    for service in WITHOUT_TORCH:
        if stack.attempt("exec", "-T", service, "python", "-c", "import torch").returncode == 0:
            raise SmokeError(f"the image of {service} has torch")
    return "services are no root, cannot write to their images, and the light ones have no torch"


def train(stack: Stack) -> str:
    """The profile `demo` submits a run and follows it to its end; the audit finds nothing lost."""
    stack.call("--profile", "demo", "up", "--detach", "--no-build", "--no-recreate", "demo")
    until("the run to end", RUN_SECONDS, lambda: stack.state("demo").get("State") == "exited")
    log = stack.call("--profile", "demo", "logs", "--no-log-prefix", "demo")
    run = re.search(r"^(\S+): queued", log, re.MULTILINE)
    if stack.state("demo")["ExitCode"] or run is None:
        raise SmokeError(f"the demo's run did not succeed:\n{log[-3000:]}")
    audit = in_cli(stack, "sluice", "audit", run[1])
    keep_and_delete_evaluations(stack, run[1])
    return f"a run has finished: {log.strip().splitlines()[-1]}; {audit.strip().splitlines()[-1]}"


def keep_and_delete_evaluations(stack: Stack, run: str) -> None:
    """The coordinator has written the files of every evaluation where the command line reads them, until it deletes."""
    find = ("find", "/data/evaluations", "-name", "summary.json")
    versions = {line.split("/")[-3] for line in in_cli(stack, *find).splitlines()}
    if versions != EVALUATED:
        raise SmokeError(f"the files of evaluations are those of {sorted(versions)}, not of {sorted(EVALUATED)}")
    in_cli(stack, "sluice", "delete", run)
    if left := in_cli(stack, *find):
        raise SmokeError(f"after the run was deleted there are still {left}")


def in_cli(stack: Stack, *words: str) -> str:
    """Standard output of a command in the container of the command line."""
    return stack.call("--profile", "cli", "run", "--no-deps", "-T", "cli", *words)


def look_at_metrics(stack: Stack) -> str:
    """Prometheus finds every service by its name, has the run's numbers and the rules, and knows Alertmanager."""
    until("every target to be scraped", SCRAPE_SECONDS, lambda: targets() == JOBS)
    steps = query("sum(max_over_time(sluice_trainer_steps_total[10m]))")
    batches = query("sum(sluice_batches_total)")
    tokens = query("sum(max_over_time(sluice_rollout_tokens_total[10m]))")
    if not (steps > 0 and batches > 0 and tokens > 0):
        raise SmokeError(
            f"Prometheus has {steps:g} training steps, {batches:g} batches and {tokens:g} tokens of the run"
        )
    rules = sum(len(group["rules"]) for group in ask("rules")["groups"])
    alertmanagers = ask("alertmanagers")["activeAlertmanagers"]
    if not rules or len(alertmanagers) != 1:
        raise SmokeError(f"Prometheus has {rules} rules and {len(alertmanagers)} Alertmanagers")
    return f"Prometheus scrapes {sum(JOBS.values())} targets: {steps:g} steps, {tokens:g} tokens, {rules} rules"


def targets() -> dict[str, int]:
    """How many targets of each job answer."""
    up = ask("query", query="up == 1")["result"]
    return dict(Counter(series["metric"]["job"] for series in up if series["metric"]["job"] in JOBS))


def query(expression: str) -> float:
    result = ask("query", query=expression)["result"]
    return float(result[0]["value"][1]) if result else 0.0


def ask(what: str, **parameters: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{os.environ['PROMETHEUS_PORT']}/api/v1/{what}"
    answer: dict[str, Any] = httpx.get(url, params=parameters, timeout=10, trust_env=False).raise_for_status().json()
    data: dict[str, Any] = answer["data"]
    return data


def refuse(stack: Stack) -> str:
    """A fault of the deployment is one line on standard error, and exit code 2."""
    faults = {
        "coordinator": ("-e", "SLUICE_API_TOKEN_FILE=/secrets/none"),
        "engine-0": ("-e", "ENGINE_MODEL=models/none"),
        "reward-0": ("-e", "SLUICE_REWARD_WORKERS=many"),
        "rollout-0": ("-e", "SLUICE_NATS_URL=nats://redis:6379"),
        "trainer": ("-e", "SLUICE_TRAINER_DEVICE=cuda"),
    }
    for service, options in faults.items():
        # Without --rm: podman forgets the exit code of a container that removes itself.
        done = stack.attempt("run", "--no-deps", "-T", *options, service)
        lines = [line for line in done.stderr.splitlines() if line.startswith("sluice-")]
        if done.returncode != 2 or len(lines) != 1:
            raise SmokeError(f"{service} with {options[1]} ends with code {done.returncode}:\n{done.stderr[-2000:]}")
    return f"{len(faults)} faults of a deployment are one line and exit code 2 each"


def go_down(stack: Stack) -> str:
    """Nothing is left of the stack."""
    stack.call("--profile", "*", "down", "--remove-orphans", "--volumes", "--timeout", "20")
    for kind in ("container", "volume", "network"):
        listing = [
            "podman",
            kind,
            "ls",
            "--filter",
            f"label=com.docker.compose.project={os.environ['COMPOSE_PROJECT_NAME']}",
        ]
        left = subprocess.run(
            [*listing, *(["--all"] if kind == "container" else []), "--quiet"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        if left:
            raise SmokeError(f"after `down` there are still {len(left)} of the stack's {kind}s")
    return "the stack is gone: no container, volume or network is left"


def until(what: str, seconds: float, reached: Callable[[], bool]) -> None:
    """Raises: SmokeError: `reached` is not true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise SmokeError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
