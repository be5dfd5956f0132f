"""Which runs this coordinator holds: it tries for the lease of each that has not ended, and lets go of it cleanly."""

from __future__ import annotations

import asyncio
import contextlib

import nats
from nats.js.errors import APIError

from services.coordinator.announcing import announce, set_aside
from services.coordinator.board import StatusBoard
from services.coordinator.config import CoordinatorConfig
from services.coordinator.evaluation.run import evaluating
from services.coordinator.inbox import RunInbox
from services.coordinator.loop import coordinate
from services.coordinator.metrics import CoordinatorMetrics
from services.coordinator.run import Run
from services.coordinator.runs import RunReader
from sluice.cancellation import end_tasks
from sluice.errors import ConfigError, FencedError, TransientError, WireError
from sluice.telemetry import get_logger, instance_name, log_context
from sluice.transport.lease import Lease
from sluice.transport.nats import Bus
from sluice.transport.queues import publish_event
from sluice.types import RunState

LOOK_SECONDS = 1.0


class RunHost:
    """Holds runs by lease. The lease only decides who tries; LEDGER's fence decides who may write."""

    def __init__(
        self, bus: Bus, runs: RunReader, board: StatusBoard, config: CoordinatorConfig, metrics: CoordinatorMetrics
    ) -> None:
        self._bus, self._runs, self._board, self._config, self._metrics = bus, runs, board, config, metrics
        self.name = instance_name("coordinator")
        self._log = get_logger("coordinator").bind(coordinator=self.name)
        self._held: dict[str, asyncio.Task[None]] = {}
        self._unreadable: dict[str, str] = {}
        """Runs with records that cannot be read, with the reason."""
        self._aside: dict[str, str] = {}
        """Those of them that trainers and workers were told to leave."""

    async def serve(self) -> None:
        """Look for runs without a holder, for ever; cancel it to let go of all."""
        try:
            while True:
                for run_id in await self._open_runs():
                    if run_id not in self._held:
                        with log_context(run=run_id):  # the task that holds the run keeps it
                            await self._try(run_id)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await end_tasks(list(self._held.values()))

    async def _open_runs(self) -> list[str]:
        try:
            unended = [history for history in await self._runs.all() if not history.state.terminal]
        except (APIError, nats.errors.Error, TransientError) as error:
            self._log.warning("runs_unreadable", error=str(error))
            return []
        await self._tell_unreadable({history.run_id: history.problem for history in unended if history.problem})
        return [history.run_id for history in unended if not history.problem]

    async def _tell_unreadable(self, problems: dict[str, str]) -> None:
        """Runs that a coordinator of this release cannot hold are left to another one; each is named once."""
        self._metrics.unreadable.set(len(problems))
        for run_id, problem in problems.items():
            if self._unreadable.get(run_id) != problem:
                self._log.error("run_unreadable", run=run_id, error=problem)
                await publish_event(self._bus, run_id, "alarm", {"alarm": "run_unreadable", "error": problem})
            if self._aside.get(run_id) != problem and await self._set_aside(run_id, problem):
                self._aside[run_id] = problem
        self._unreadable = problems
        self._aside = {run_id: problem for run_id, problem in self._aside.items() if run_id in problems}

    async def _set_aside(self, run_id: str, problem: str) -> bool:
        """Trainers and workers serve others; False while a coordinator that can read the run holds it."""
        lease = await self._lease(run_id)
        if lease is None:
            return False
        try:
            await set_aside(self._bus, run_id, problem)
        except (APIError, nats.errors.Error) as error:
            self._log.warning("run_not_set_aside", run=run_id, error=str(error))
            return False
        finally:
            await lease.release()
        return True

    async def _try(self, run_id: str) -> None:
        lease = await self._lease(run_id)
        if lease is not None:
            self._held[run_id] = asyncio.create_task(self._hold(run_id, lease), name=f"run {run_id}")

    async def _lease(self, run_id: str) -> Lease | None:
        """The run's lease, if it is free."""
        try:
            return await Lease.acquire(self._bus, f"coordinator.{run_id}", self.name, self._config.lease_seconds)
        except (APIError, nats.errors.Error) as error:
            self._log.warning("lease_unreachable", error=str(error))
            return None

    async def _hold(self, run_id: str, lease: Lease) -> None:
        """Coordinate one run until it ends, the lease is lost, or another coordinator has overtaken us."""
        held = asyncio.create_task(self._coordinate(run_id))
        lost = asyncio.create_task(lease.lost.wait())
        try:
            await asyncio.wait({held, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not held.done():
                self._log.warning("lease_lost")
        finally:
            await end_tasks([held, lost])
            self._metrics.end(run_id)
            await lease.release()
            del self._held[run_id]

    async def _coordinate(self, run_id: str) -> None:
        run = Run(self._bus, run_id, self._board, self._log, self._metrics, self._runs.written)
        try:
            await run.claim(self.name)
            await run.rebuild()
            await announce(self._bus, run.history)
            self._metrics.begin(run.history)
            self._log.info("run_claimed", state=str(run.history.state), batches=run.history.end_step)
            async with (
                RunInbox(run) as inbox,
                run.offering.serving(inbox.offering_rests, inbox.fail),
                evaluating(run, self._config.evaluations_dir, inbox.fail),
            ):
                await coordinate(run, inbox)
        except FencedError as error:
            self._log.warning("fenced", error=str(error))
        except WireError as error:
            self._log.error("run_let_go", error=str(error))
            with contextlib.suppress(TransientError, APIError, nats.errors.Error):
                await self._runs.let_go(run_id, str(error))
        except ConfigError as error:
            self._log.error("run_unusable", error=str(error))
            with contextlib.suppress(FencedError, TransientError):
                await run.change_state(RunState.FAILED, str(error))
        except Exception as error:
            # One run's fault must not take the others down: let go of it, and it is claimed and rebuilt again.
            self._log.error("coordination_failed", error=str(error), exc_info=True)
