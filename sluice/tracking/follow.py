"""From a run's events into its targets, until the run ends.

Consumes the run's events from the first on, and what the ledger says of batches; produces steps in targets; waits for
the coordinator (60 s, `RunsClient.events`). On failure it ends; started again, it goes on after what each target has.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from sluice.client import RunsClient
from sluice.tracking.evaluations import tracked
from sluice.tracking.names import with_verl_names
from sluice.tracking.steps import StepFold, TrackedStep
from sluice.tracking.target import Target
from sluice.types import RunState
from sluice.views import RunView

LAST_STEP_SECONDS = 3.0
"""Longest wait for the event of the last training step, once the run has ended."""
POLL_SECONDS = 0.2


class Follower:
    """Feeds the targets of one run."""

    def __init__(self, client: RunsClient, run: RunView, targets: Sequence[Target], verl_names: bool = False) -> None:
        self._client, self._run_id, self._targets = client, run.id, targets
        self._verl_names = verl_names
        self._fold = StepFold(run)
        self._last_event = 0

    async def follow(self) -> RunView:
        """Write every step once and in order; the run, once it has ended.

        Raises:
            ConfigError, TransientError: as `RunsClient` and the targets.
        """
        await self._read_batches()
        await self._read_events()
        run = await self._client.get(self._run_id)
        with contextlib.suppress(TimeoutError):
            # A run ends with its last checkpoint, and its events with it; that of the last step may come after.
            async with asyncio.timeout(LAST_STEP_SECONDS):
                while self._fold.done < run.training_steps:
                    await asyncio.sleep(POLL_SECONDS)
                    await self._read_events()
        await self._read_batches()
        self._write(self._fold.without_training(run.training_steps))
        await self._read_evaluations()
        for target in self._targets:
            target.finish()
        return run

    async def _read_batches(self) -> None:
        self._fold.see_batches(await self._client.steps(self._run_id))

    async def _read_events(self) -> None:
        """To the end of the run, as far as it was not read."""
        async for event in self._client.events(self._run_id, self._last_event):
            self._last_event = event.id
            if self._fold.lacks_batch(event):
                await self._read_batches()
            self._write(self._fold.see_event(event))
            if event.kind == "evaluation" and event.fields.get("scores"):
                await self._read_evaluations(event.fields["number"])

    async def _read_evaluations(self, last: float = math.inf) -> None:
        """Up to that of version `last`, from the API: it has them all, also those whose events are gone."""
        for view in await self._client.evaluations(self._run_id):
            if view.number <= last and (evaluation := tracked(view, self._verl_names)) is not None:
                for target in self._targets:
                    if evaluation.number > target.last_evaluation:
                        target.evaluate(evaluation)

    def _write(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            named = replace(step, values=with_verl_names(step.values)) if self._verl_names else step
            for target in self._targets:
                if named.number > target.last:
                    target.write(named)


def failed(run: RunView | None) -> bool:
    """Whether the run has failed, as trackers mark it; one that goes on, or was left, has not."""
    return run is not None and run.state is RunState.FAILED
