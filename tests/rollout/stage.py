"""What surrounds a rollout worker in tests: real engines and rewards; the test plays trainer and coordinator."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NoKeysError
from safetensors import safe_open
from tokenizers import Tokenizer

from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.transport.log import ledger_log, trainer_log
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_prompt, read_groups
from sluice.types import Group, PolicyVersion, Prompt, RunCreated, Sampling, Version
from sluice.weights.publish import VersionWriter
from sluice.wire import subjects
from tests.servers import free_port

ROOT = Path(__file__).parent.parent.parent
RUN = "run-a"
NEWLINE = 3


class Process:
    """A service as a process of its own, with its output in a file."""

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", module, *arguments]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                command, cwd=ROOT, env=plain | {"OMP_NUM_THREADS": "1"} | environment, stdout=output, stderr=output
            )

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM; returns the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(self.log.read_text()) from None


class EngineServer(Process):
    """The CPU engine; `restart` brings it back at the same address."""

    def __init__(self, model: Path, log: Path) -> None:
        self.port, self.model = free_port(), model
        self.url = f"http://127.0.0.1:{self.port}"
        self.start(log)

    def start(self, log: Path) -> None:
        arguments = ["--model", str(self.model), "--port", str(self.port), "--dtype", "float32", "--threads", "1"]
        super().__init__("services.engine", arguments, {}, log)

    def restart(self) -> None:
        self.kill()
        self.start(self.log)

    def wait(self, seconds: float = 60.0) -> None:
        wait_until(lambda: _answers(f"{self.url}/model_info"), seconds, self.log)


class RewardServer(Process):
    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        settings = {"SLUICE_REWARD_BIND": self.address, "SLUICE_REWARD_WORKERS": "1"}
        super().__init__("services.reward", [], settings, log)

    def wait(self) -> None:
        wait_until(lambda: '"serving"' in self.log.read_text(), 60.0, self.log)


class WorkerProcess(Process):
    """`python -m services.rollout`."""

    def __init__(self, nats_url: str, engine: str, reward: str, folder: Path, **environment: str) -> None:
        settings = {
            "SLUICE_NATS_URL": nats_url,
            "SLUICE_NATS_DEADLINE_SECONDS": "10",
            "SLUICE_REDIS_URL": "redis://127.0.0.1:1/0",  # nobody listens: live status may vanish
            "SLUICE_ENGINE_URL": engine,
            "SLUICE_REWARD_ADDRESSES": reward,
            "SLUICE_CACHE_DIR": str(folder / "cache"),
        }
        super().__init__("services.rollout", [], settings | environment, folder / f"worker-{free_port()}.log")


def wait_until(condition: Callable[[], bool], seconds: float, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s:\n{log.read_text()[-4000:]}")
        time.sleep(0.05)


async def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of `condition`, which may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def endless_model(tiny: Path, target: Path) -> Path:
    """The tiny model without an end token: it writes until max_new_tokens, so a test can act in mid-group."""
    shutil.copytree(tiny, target)
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps(fields | {"eos_token_id": None}))
    return target


class Stage:
    """One run, as its coordinator and its trainer would write it."""

    def __init__(self, bus: Bus, model: Path, folder: Path, run: str = RUN) -> None:
        self.bus, self.model, self.weights, self.run = bus, model, folder / "weights", run
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.spec: RunSpec | None = None

    async def open(self, state: str = "running", **changes: Any) -> RunSpec:
        """Create the run from configs/tiny.toml with `section__field=value` changes."""
        fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
        fields["model"]["path"] = str(self.model)
        fields["rollout"] |= {"group_size": 4, "stop_texts": []}
        fields["deadlines"] |= {"weight_sync_seconds": 20.0, "generate_seconds": 60.0}
        fields["reward"]["verifier"] = "exact"
        for path, value in changes.items():
            section, field = path.split("__")
            fields[section][field] = value
        self.spec = parse_run_spec(fields)
        record = RunCreated(self.run, self.spec.canonical_json, self.spec.config_hash)
        await ledger_log(self.bus, self.run).append(record)
        await self.state(state)
        return self.spec

    async def state(self, state: str, created_at: float = 1.0, **fields: str) -> None:
        bucket = await self.bus.bucket(subjects.RUNS_BUCKET)
        entry = {"state": state, "created_at": created_at, "config_hash": "x"} | fields
        await bucket.put(self.run, json.dumps(entry).encode())

    def write_version(self, number: int, lineage: int = 1, scale: float = 1.0) -> Version:
        """Write the model's tensors, each times `scale`, as a version; the record that would announce it."""
        version = PolicyVersion(number, lineage)
        writer = VersionWriter(self.weights, self.run, version, parent=None, optimizer_updates=number, config_hash="x")
        with safe_open(self.model / "model.safetensors", framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                tensor = tensors.get_tensor(name) * scale
                writer.add(name, "F32", tensor.shape, tensor.astype("<f4").data)
        path, manifest = writer.commit()
        return Version(version, path.as_uri(), manifest.hash, chain="")

    async def announce(self, record: Version) -> None:
        log = trainer_log(self.bus, self.run)
        await log.read()
        await log.append(record)

    async def publish(self, number: int, lineage: int = 1, scale: float = 1.0) -> Version:
        record = await asyncio.to_thread(self.write_version, number, lineage, scale)
        await self.announce(record)
        return record

    def prompt(self, n: int, text: str = "3+4=", **changes: Any) -> Prompt:
        assert self.spec is not None
        prompt = Prompt(
            run_id=self.run,
            n=n,
            index=n,
            epoch=0,
            token_ids=tuple(self.tokenizer.encode(text).ids),
            text=text,
            ground_truth="7",
            data_source="addition",
            extra_info="{}",
            group_size=self.spec.rollout.group_size,
            sampling=Sampling(self.spec.rollout.max_response_length, stop_token_ids=(NEWLINE,)),
            seed=n,
            min_version=0,
        )
        return replace(prompt, **changes)

    async def offer(self, *prompts: Prompt) -> None:
        for prompt in prompts:
            await publish_prompt(self.bus, prompt)

    async def groups(self, count: int, seconds: float = 30.0) -> dict[int, Group]:
        """The run's groups by n, once there are `count`."""

        async def enough() -> dict[int, Group]:
            found = await self.stored()
            return found if len(found) >= count else {}

        return dict(await eventually(enough, seconds))

    async def stored(self) -> dict[int, Group]:
        """The run's groups by n, as of now."""
        found = await read_groups(self.bus, self.run, 1)
        assert len({group.n for _, group in found}) == len(found), "a group was stored twice"
        return {group.n: group for _, group in found}

    async def workers(self) -> dict[str, dict[str, Any]]:
        """Registrations by worker name."""
        bucket = await self.bus.bucket(subjects.WORKERS_BUCKET, subjects.WORKER_TTL_SECONDS)
        try:
            keys = await bucket.keys()
        except NoKeysError:
            return {}
        return {key.split(".", 1)[1]: json.loads((await bucket.get(key)).value or b"{}") for key in keys}

    async def forget_silent_workers_after(self, seconds: float) -> None:
        """Make the run's consumer before any worker does, with less patience than it has in service."""
        config = ConsumerConfig(
            durable_name=f"workers-{self.run}",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=seconds,
            max_deliver=-1,
            max_ack_pending=1_000_000,
            filter_subject=subjects.prompts(self.run),
        )
        await self.bus.js.add_consumer(subjects.PROMPTS, config)

    async def prompts_left(self) -> int:
        info = await self.bus.js.stream_info(subjects.PROMPTS)
        return int(info.state.messages)
