"""Keeps the engine on the newest policy version that the trainer has announced, or on the one that is pinned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from services.rollout import metrics
from services.rollout.engine import Engine
from services.rollout.gate import Gate
from services.rollout.run import Run
from sluice.errors import TransientError, WaitTimeoutError, WeightError
from sluice.transport.engine import EngineDownError, EngineRefusedError
from sluice.transport.log import follow_stream, read_stream
from sluice.transport.queues import publish_event
from sluice.types import PolicyVersion, TrainerRecord, Version
from sluice.weights.fetch import fetch_version
from sluice.weights.publish import remove_old
from sluice.wire import subjects
from sluice.wire.records import decode_trainer

CHECK_SECONDS = 2.0
"""How often the engine is asked which weights it serves: it may have been restarted behind our back."""
RETRY_SECONDS = 1.0
FETCH_SECONDS = 30.0
"""A version that has not arrived by then is reported; the next try continues where this one was cut."""
LOAD_TRIES = 3
CACHED_VERSIONS = 2


class WeightSync:
    """`held` is the policy version that the engine surely serves, or None: unknown, or not ours."""

    def __init__(self, run: Run, engine: Engine, gate: Gate, cache: Path) -> None:
        self._run, self._engine, self._gate, self._cache = run, engine, gate, cache
        self._log = run.log
        self._seconds = run.spec.deadlines.weight_sync_seconds
        self._announced: dict[PolicyVersion, Version] = {}
        self._caught_up = asyncio.Event()
        self._news = asyncio.Event()
        self._changed = asyncio.Condition()
        self._pinned: PolicyVersion | None = None
        self.held: PolicyVersion | None = None

    async def follow(self) -> None:
        """Take note of each announced version, for ever."""
        bus, subject = self._run.bus, subjects.trainer(self._run.id)
        last = 0
        async for sequence, payload, _ in read_stream(bus, subjects.TRAINER, subject):
            self._note(decode_trainer(payload))
            last = sequence
        self._caught_up.set()
        async for _, payload, _ in follow_stream(bus, subjects.TRAINER, subject, last + 1):
            self._note(decode_trainer(payload))

    def _note(self, record: TrainerRecord) -> None:
        if isinstance(record, Version):
            self._announced[record.version] = record
            self._news.set()

    async def run(self) -> None:
        """Bring the engine to the newest version, or to the pinned one, again and again.

        consumes:     Version records of TRAINER (noted by `follow`), and what the engine says it serves
        produces:     `held`, and a `weights_applied` event a version
        waits for:    an announcement ("version"), the files, the engine
        unblocked by: the trainer; the engine's supervisor when it died
        on failure:   held is None until a load succeeded, so nothing is generated from unknown weights; tried again
                      for as long as the run lives, said in the log, the metrics and an alarm each deadline
        """
        failing_since: float | None = None
        await self._caught_up.wait()
        while True:
            try:
                await self._check_engine()
                done = await self._apply_wanted()
            except (TransientError, EngineRefusedError, WaitTimeoutError, WeightError) as error:
                failing_since = await self._report(error, failing_since)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            failing_since = None
            await self._pause_until_news(0.0 if done else CHECK_SECONDS)

    async def at_least(self, number: int) -> PolicyVersion:
        """Wait until the engine serves version `number` or a later one.

        Raises:
            WaitTimeoutError: not within deadlines.weight_sync_seconds.
        """
        return await self._until_held(lambda held: held.number >= number)

    async def serving(self, version: PolicyVersion) -> None:
        """Wait until the engine serves exactly this version, which must be pinned. Raises: as `at_least`."""
        await self._until_held(lambda held: held == version)

    async def _until_held(self, wanted: Callable[[PolicyVersion], bool]) -> PolicyVersion:
        if self.held is not None and wanted(self.held):
            return self.held
        try:
            async with asyncio.timeout(self._seconds), self._changed:
                with metrics.waiting(self._run.id, "policy_version"):
                    await self._changed.wait_for(lambda: self.held is not None and wanted(self.held))
                assert self.held is not None
                return self.held
        except TimeoutError:
            raise WaitTimeoutError("policy_version", self._seconds, "deadlines.weight_sync_seconds") from None

    @asynccontextmanager
    async def pinned(self, version: PolicyVersion) -> AsyncIterator[None]:
        """Within, the engine is brought to `version`, older or newer than its own, and stays there.

        Only with no training group in flight: it would get tokens older than its prompt allows.
        """
        self._pinned = version
        self._news.set()
        try:
            yield
        finally:
            self._pinned = None
            self._news.set()

    async def engine_lost(self) -> None:
        """The engine died or serves other weights: load before the next generation."""
        await self._set_held(None)
        self._news.set()

    async def _set_held(self, version: PolicyVersion | None) -> None:
        async with self._changed:
            self.held = version
            self._changed.notify_all()
        metrics.POLICY_VERSION.labels(self._run.id).set(-1 if version is None else version.number)

    async def _check_engine(self) -> None:
        serving = await self._engine.weight_version()
        if self.held is not None and serving != str(self.held):
            self._log.warning("engine_serves_other_weights", serving=serving, held=str(self.held))
            await self.engine_lost()

    def _wanted(self) -> list[PolicyVersion]:
        """What the engine should serve rather than `held`, the best first."""
        if self._pinned is not None:
            return [self._pinned] if self._pinned != self.held and self._pinned in self._announced else []
        lowest = -1 if self.held is None else self.held.number
        return sorted((v for v in self._announced if v.number > lowest), reverse=True)

    async def _apply_wanted(self) -> bool:
        """Serve the best wanted version whose files are good; True if that changed something."""
        fault: WeightError | TransientError | None = None
        for version in self._wanted():
            started = time.monotonic()
            record = self._announced[version]
            try:
                folder, manifest = await fetch_version(record, self._cache, min(FETCH_SECONDS, self._seconds))
            except (WeightError, TransientError) as error:
                fault = fault or error
                continue  # collected or damaged: an older one may do until the trainer passes it
            metrics.WEIGHT_FETCH_SECONDS.labels(self._run.id).observe(time.monotonic() - started)
            await self._load(folder, version)
            await self._set_held(version)
            await self._tell(version, time.monotonic() - started, manifest.nbytes)
            return True
        if fault is not None:
            raise fault
        return False

    async def _load(self, folder: Path, version: PolicyVersion) -> None:
        """Pause (or drain), load, flush, go on. Whatever fails, no request goes on over unknown weights."""
        drain = self._run.spec.weights.update == "drain"
        room: AbstractAsyncContextManager[None] = self._gate.exclusive() if drain else nullcontext()
        stall = metrics.UPDATE_STALL_SECONDS.labels(self._run.id)
        async with room:
            with stall.time(), metrics.waiting(self._run.id, "weight_sync"):
                await self._load_paused(folder, version)

    async def _load_paused(self, folder: Path, version: PolicyVersion) -> None:
        try:
            await self._engine.pause()
            await self._update(folder, str(version))
        except (TransientError, EngineRefusedError, WaitTimeoutError):
            await self._set_held(None)
            await self._engine.abort_all()
            raise
        finally:
            await self._engine.resume()

    async def _update(self, folder: Path, version: str) -> None:
        """A refusal says nothing about what was loaded: the version the engine reports decides, else it loads again."""
        refusal = ""
        for _ in range(LOAD_TRIES):
            refusal = await self._engine.update_weights(folder, version, self._seconds)
            if await self._engine.weight_version() == version:
                await self._flush(clean_update=not refusal)
                return
        raise EngineRefusedError(
            f"engine {self._engine.url} does not serve {version} from {folder} after {LOAD_TRIES} tries: "
            f"{refusal or 'it says that it loaded them, and names another version'}; it must have been started with "
            f"the model of the run, model.path = {self._run.spec.model.path!r}"
        )

    async def _flush(self, clean_update: bool) -> None:
        """A clean update has flushed already, and some servers refuse while retracted requests wait."""
        if await self._engine.flush() or clean_update:
            return
        await self._engine.abort_all()
        if not await self._engine.flush():
            raise EngineRefusedError("engine does not drop the cached prefixes of old weights")

    async def _tell(self, version: PolicyVersion, seconds: float, nbytes: int) -> None:
        metrics.WEIGHT_SYNC_SECONDS.labels(self._run.id).observe(seconds)
        metrics.WEIGHT_SYNC_BYTES.labels(self._run.id).inc(nbytes)
        self._log.info("weights_applied", policy_version=str(version), seconds=round(seconds, 3), bytes=nbytes)
        fields = {"worker": self._run.worker, "version": str(version), "seconds": seconds, "bytes": nbytes}
        await publish_event(self._run.bus, self._run.id, "weights_applied", fields)
        await asyncio.to_thread(remove_old, self._cache, self._run.id, CACHED_VERSIONS, [version])

    async def _report(self, error: Exception, since: float | None) -> float:
        """Say what stands in the way; returns since when it does, starting anew with each alarm.

        An engine that refuses the weights will not change its mind: that is an alarm at once.
        """
        kind = "down" if isinstance(error, EngineDownError) else type(error).__name__.removesuffix("Error").lower()
        metrics.WEIGHT_SYNC_FAILURES.labels(self._run.id, kind).inc()
        if isinstance(error, EngineDownError):
            await self._set_held(None)
        self._log.warning("weight_sync_failed", error=str(error), held=str(self.held))
        now = time.monotonic()
        refused = since is None and isinstance(error, EngineRefusedError)
        if refused or (since is not None and now - since > self._seconds):
            fields = {"wait": "weight_sync", "error": str(error), "knob": "deadlines.weight_sync_seconds"}
            await publish_event(self._run.bus, self._run.id, "alarm", fields)
            return now
        return now if since is None else since

    async def _pause_until_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                with metrics.waiting(self._run.id, "version"):
                    await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()
