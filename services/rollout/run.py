"""The run that a worker serves: how it is found, what it is, and when it is over."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import nats
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from services.rollout import metrics
from sluice.config import RunSpec, parse_run_spec
from sluice.errors import ConfigError, WireError
from sluice.telemetry import Logger
from sluice.transport.log import read_stream
from sluice.transport.nats import Bus
from sluice.types import RunCreated, RunState
from sluice.wire import subjects
from sluice.wire.records import decode_ledger

POLL_SECONDS = 1.0
NATS_FAULTS = (TimeoutError, nats.errors.Error)
"""What the client raises while the server is away or refuses: its own kinds, and the plain time-out."""


class RunUnfitError(ConfigError):
    """This worker cannot serve this run; it may serve others."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its worker sees it."""

    id: str
    spec: RunSpec
    bus: Bus
    worker: str
    log: Logger


async def read_spec(bus: Bus, run_id: str) -> RunSpec:
    """The spec in the run's first LEDGER record.

    Raises:
        RunUnfitError: there is none, or this program reads another configuration in it than its author meant.
    """
    async for _, payload, _ in read_stream(bus, subjects.LEDGER, subjects.ledger(run_id)):
        record = decode_ledger(payload)
        if not isinstance(record, RunCreated):
            break
        spec = parse_run_spec(json.loads(record.spec_json))
        if spec.config_hash != record.config_hash:
            raise RunUnfitError(
                f"run {run_id} has config hash {record.config_hash}, this program computes {spec.config_hash}: "
                "worker and coordinator are of different releases"
            )
        return spec
    raise RunUnfitError(f"ledger of run {run_id} does not begin with its spec")


class RunFinder:
    """Looks for work: the oldest run that is not over, except those this program cannot serve."""

    def __init__(self, bus: Bus, worker: str, log: Logger) -> None:
        self._bus, self._worker, self._log = bus, worker, log
        self._unfit: set[str] = set()

    async def next(self) -> Run:
        """Wait for a run."""
        bucket = await self._bus.bucket(subjects.RUNS_BUCKET)
        with metrics.waiting("", "run"):
            while True:
                for run_id in await _live_runs(bucket):
                    run = None if run_id in self._unfit else await self._open(run_id)
                    if run is not None:
                        return run
                await asyncio.sleep(POLL_SECONDS)

    async def over(self, run_ids: set[str]) -> set[str]:
        """Those of these runs that have ended or were deleted, as far as that is known: none while NATS is away."""
        try:
            return {run_id for run_id in run_ids if await self._is_over(run_id)}
        except NATS_FAULTS as error:
            self._log.warning("runs_unreadable", error=str(error))
            return set()

    async def _is_over(self, run_id: str) -> bool:
        known = await self._value(subjects.RUNS_BUCKET, run_id)
        if known is None:
            return await self._value(subjects.DELETED_BUCKET, run_id) is not None
        state = _state(known)
        return state is not None and state.terminal

    async def _value(self, bucket: str, key: str) -> bytes | None:
        try:
            return (await (await self._bus.bucket(bucket)).get(key)).value or b""
        except KeyNotFoundError:
            return None

    async def _open(self, run_id: str) -> Run | None:
        try:
            spec = await read_spec(self._bus, run_id)
        except (ConfigError, WireError) as error:
            self.reject(run_id, error)
            return None
        return Run(run_id, spec, self._bus, self._worker, self._log.bind(run=run_id))

    def reject(self, run_id: str, error: Exception) -> None:
        """Do not offer this run again."""
        self._log.error("run_refused", run=run_id, error=str(error))
        self._unfit.add(run_id)


async def wait_until_over(run: Run) -> str:
    """Wait until nobody wants groups of the run any more; returns why: its state, or why no coordinator holds it."""
    bucket = await run.bus.bucket(subjects.RUNS_BUCKET)
    while True:
        try:
            value = (await bucket.get(run.id)).value
            if not _wants_groups(value) and (state := _state(value)) is not None:
                return _problem(value) or str(state)
        except KeyNotFoundError:
            return "deleted"
        except NATS_FAULTS:
            pass  # the server is away: nothing is known
        await asyncio.sleep(POLL_SECONDS)


async def _live_runs(bucket: KeyValue) -> list[str]:
    found: list[tuple[float, str]] = []
    try:
        for run_id in await bucket.keys():
            entry = await bucket.get(run_id)
            if _wants_groups(entry.value):
                found.append((float(json.loads(entry.value or b"{}").get("created_at", 0)), run_id))
    except NATS_FAULTS:
        return []
    return [run_id for _, run_id in sorted(found)]


def _wants_groups(value: bytes | None) -> bool:
    state = _state(value)
    return state is not None and not state.terminal and state is not RunState.STOPPING and not _problem(value)


def _problem(value: bytes | None) -> str:
    """Why no coordinator can hold the run, or nothing."""
    return str(json.loads(value or b"{}").get("problem", ""))


def _state(value: bytes | None) -> RunState | None:
    try:
        return RunState(json.loads(value or b"{}")["state"])
    except (ValueError, KeyError):
        return None
