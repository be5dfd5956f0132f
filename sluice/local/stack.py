"""The table of services that make up Sluice on one machine: commands, environment, health, order. Nothing runs here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluice.local import binaries
from sluice.local.ports import LOOPBACK, check_port, free_ports
from sluice.local.services import Command, HttpHealth, Service, TcpHealth

TORCH_ENVIRONMENT = {
    # One thread each: engine and trainer share the cores of one machine, and work at the same time.
    "OMP_NUM_THREADS": "1",
    # glibc maps and unmaps every large tensor otherwise: a fifth of the time of a CPU training step.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1000000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
MAX_PAYLOAD_BYTES = 8 << 20
"""NATS counts headers too, so its default of 1 MiB would refuse a full part of a rollout."""
MAX_FILE_STORE_BYTES = 1 << 40
"""JetStream reserves each stream's limit when it is created; the disk, not this number, is the real limit here."""
LOGS_IN_UTC = {"TZ": "UTC"}
"""Their lines do not say in which zone their time is; `sluice logs` puts them between those of the services."""
GROUPS_IN_FLIGHT = 32
SAMPLES_DECODED_TOGETHER = 256
"""A decoding step on a CPU costs little more for many rows than for few, so prompts should not wait for their turn."""
DRAIN_SECONDS = 5
"""What a rollout worker gets to finish or hand back its groups: less than the supervisor's patience."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What differs from stack to stack."""

    data: Path
    """Where NATS, Valkey, weights and checkpoints are kept."""
    model: Path
    """The checkpoint that the engines serve until a run publishes its own."""
    engine_dtype: str = "bfloat16"
    rollout_workers: int = 1
    """Each has an engine of its own."""
    reward_servers: int = 2
    trainer_ranks: int = 1
    ports: Mapping[str, int] = field(default_factory=dict)
    """Ports the user asked for, by name: `api`, `nats`, `redis`."""
    token: str | None = None
    track_to: tuple[str, ...] = ()
    """Targets of `sluice track`, which follows every run of the stack."""
    change: Callable[[Service], Service] = lambda service: service
    """What experiments put in a service's place; no command of ours sets it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The services in an order in which each comes after those it needs, and what must exist before they start."""

    services: tuple[Service, ...]
    ports: dict[str, int]
    files: dict[Path, str]
    token: str | None = None
    """Bearer token of the API."""

    @property
    def api_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports['api']}"

    @property
    def nats_url(self) -> str:
        return f"nats://{LOOPBACK}:{self.ports['nats']}"

    @property
    def redis_url(self) -> str:
        return f"redis://{LOOPBACK}:{self.ports['redis']}/0"


def plan_stack(options: StackOptions) -> Stack:
    """Choose the ports and fill in the table.

    Raises:
        ConfigError: a port the user asked for is in use, or a program is not installed.
    """
    data = options.data.absolute()
    ports = _choose_ports(options)
    plan = _Plan(options, data, ports)
    return Stack(
        services=tuple(map(options.change, plan.services())),
        ports=ports,
        files={data / "nats.conf": _nats_config(data, ports)},
        token=options.token,
    )


def _choose_ports(options: StackOptions) -> dict[str, int]:
    names = ["nats", "nats-monitor", "redis", "api", "weights", "coordinator-metrics", "trainer-metrics"]
    for i in range(options.reward_servers):
        names += [f"reward-{i}", f"reward-{i}-metrics"]
    for i in range(options.rollout_workers):
        names += [f"engine-{i}", f"rollout-{i}-metrics"]
    for name, port in options.ports.items():
        check_port(port, f"--{name}-port")
    wanted = [name for name in names if name not in options.ports]
    return {**dict(zip(wanted, free_ports(len(wanted), options.ports.values()), strict=True)), **options.ports}


@dataclass(frozen=True, slots=True)
class _Plan:
    options: StackOptions
    data: Path
    ports: Mapping[str, int]

    def services(self) -> Iterator[Service]:
        yield self._nats()
        yield self._valkey()
        rewards = [self._reward(i) for i in range(self.options.reward_servers)]
        yield from rewards
        yield self._coordinator([r.name for r in rewards])
        for i in range(self.options.rollout_workers):
            yield self._engine(i)
            yield self._rollout(i, [r.name for r in rewards])
        yield self._trainer()
        if self.options.track_to:
            yield self._tracker(self.options.track_to)

    def _nats(self) -> Service:
        argv = (binaries.nats_server(), "--config", str(self.data / "nats.conf"))
        health = (HttpHealth(self.ports["nats-monitor"], "/healthz"),)
        return Service("nats", (Command("nats", argv, LOGS_IN_UTC),), health, folders=(self.data / "nats",))

    def _valkey(self) -> Service:
        folder = self.data / "valkey"
        options = {
            "port": str(self.ports["redis"]),
            "bind": LOOPBACK,
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory": "256mb",
            "maxmemory-policy": "noeviction",
        }
        argv = (binaries.valkey_server(), *_flags(options))
        health = (TcpHealth(self.ports["redis"]),)
        # Optional: it holds the live status, which may vanish at any time.
        return Service("valkey", (Command("valkey", argv, LOGS_IN_UTC),), health, folders=(folder,), optional=True)

    def _reward(self, i: int) -> Service:
        name = f"reward-{i}"
        environment = self._common(f"{name}-metrics") | {
            "SLUICE_REWARD_BIND": f"{LOOPBACK}:{self.ports[name]}",
            "SLUICE_REWARD_WORKERS": "1",
        }
        health = (HttpHealth(self.ports[f"{name}-metrics"], "/readyz"), TcpHealth(self.ports[name]))
        return Service(name, (_python(name, "services.reward", environment),), health)

    def _coordinator(self, rewards: list[str]) -> Service:
        environment = self._common("coordinator-metrics") | {
            "SLUICE_API_HOST": LOOPBACK,
            "SLUICE_API_PORT": str(self.ports["api"]),
            "SLUICE_REWARD_ADDRESSES": self._addresses(rewards),
        }
        if self.options.token:
            environment["SLUICE_API_TOKEN"] = self.options.token
        command = _python("coordinator", "services.coordinator", environment)
        return Service("coordinator", (command,), (HttpHealth(self.ports["api"], "/readyz"),), after=("nats", "valkey"))

    def _addresses(self, names: list[str]) -> str:
        return ",".join(f"{LOOPBACK}:{self.ports[name]}" for name in names)

    def _engine(self, i: int) -> Service:
        name = f"engine-{i}"
        flags = {
            "model": str(self.options.model),
            "dtype": self.options.engine_dtype,
            "host": LOOPBACK,
            "port": str(self.ports[name]),
            "max-running-requests": str(SAMPLES_DECODED_TOGETHER),
        }
        command = _python(name, "services.engine", {**self._common(None), **TORCH_ENVIRONMENT}, flags)
        return Service(name, (command,), (HttpHealth(self.ports[name], "/health"),), start_seconds=180)

    def _rollout(self, i: int, rewards: list[str]) -> Service:
        name = f"rollout-{i}"
        cache = self.data / "cache" / name
        environment = self._common(f"{name}-metrics") | {
            "SLUICE_ENGINE_URL": f"http://{LOOPBACK}:{self.ports[f'engine-{i}']}",
            "SLUICE_REWARD_ADDRESSES": self._addresses(rewards),
            "SLUICE_CACHE_DIR": str(cache),
            "SLUICE_WORKER_NAME": name,
            "SLUICE_DRAIN_SECONDS": str(DRAIN_SECONDS),
            "SLUICE_MAX_GROUPS_IN_FLIGHT": str(GROUPS_IN_FLIGHT),
        }
        needs = ("nats", "valkey", "coordinator", f"engine-{i}", *rewards)
        command = _python(name, "services.rollout", environment)
        health = (HttpHealth(self.ports[f"{name}-metrics"], "/healthz"),)
        return Service(name, (command,), health, after=needs, folders=(cache,))

    def _trainer(self) -> Service:
        ranks = self.options.trainer_ranks
        weights = f"{LOOPBACK}:{self.ports['weights']}"
        commands = []
        for rank in range(ranks):
            environment = {
                **self._common("trainer-metrics" if rank == 0 else None),
                **TORCH_ENVIRONMENT,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": LOOPBACK,
                "SLUICE_TRAINER_THREADS": "1",
                "SLUICE_WEIGHTS_BIND": weights,
                "SLUICE_WEIGHTS_ADVERTISE": weights,
            }
            commands.append(_python(f"trainer-{rank}", "services.trainer", environment))
        return Service(
            "trainer",
            tuple(commands),
            (HttpHealth(self.ports["trainer-metrics"], "/healthz"),),
            after=("nats", "coordinator"),
            start_seconds=180,
            fresh_ports=("MASTER_PORT",),
            ends_after_work=True,
        )

    def _tracker(self, targets: tuple[str, ...]) -> Service:
        url = f"http://{LOOPBACK}:{self.ports['api']}"
        to = tuple(word for target in targets for word in ("--to", target))
        environment = {"PYTHONUNBUFFERED": "1", "WANDB_SILENT": "true"}
        if self.options.token:
            environment["SLUICE_API_TOKEN"] = self.options.token
        command = Command(
            "tracker", (sys.executable, "-m", "sluice.cli", "track", "--all", "--at", url, *to), environment
        )
        # Optional: nobody waits for it, and it goes on where it was.
        return Service("tracker", (command,), health=(), after=("coordinator",), optional=True)

    def _common(self, metrics_port: str | None) -> dict[str, str]:
        return {
            "SLUICE_NATS_URL": f"nats://{LOOPBACK}:{self.ports['nats']}",
            "SLUICE_REDIS_URL": f"redis://{LOOPBACK}:{self.ports['redis']}/0",
            "SLUICE_DATA_DIR": str(self.data),
            "SLUICE_METRICS_HOST": LOOPBACK,
            "SLUICE_METRICS_PORT": str(self.ports[metrics_port]) if metrics_port else "0",
            # Nothing is ever fetched at run time: a model that is not in its folder is an error.
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }


def _python(name: str, module: str, environment: dict[str, str], flags: Mapping[str, str] | None = None) -> Command:
    return Command(name, (sys.executable, "-m", module, *_flags(flags or {})), environment)


def _flags(options: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(part for key, value in options.items() for part in (f"--{key}", value))


def _nats_config(data: Path, ports: Mapping[str, int]) -> str:
    return f"""\
listen: "{LOOPBACK}:{ports["nats"]}"
http: "{LOOPBACK}:{ports["nats-monitor"]}"
max_payload: {MAX_PAYLOAD_BYTES}
jetstream {{
  store_dir: "{data / "nats"}"
  max_memory_store: {256 << 20}
  max_file_store: {MAX_FILE_STORE_BYTES}
}}
"""
