"""Requests to pause, resume and stop: asked of any coordinator, answered by the one that holds the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from services.coordinator.run import Run
from sluice.errors import TransientError
from sluice.transport.nats import Bus
from sluice.types import DropReason, RunState
from sluice.views import RunAction
from sluice.wire import subjects

ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks; `done` becomes "" when it is stored, or the reason why it cannot be."""

    action: RunAction
    reason: str
    done: asyncio.Future[str] = field(compare=False)


async def answer(run: Run, request: Request) -> None:
    """Carry out one request. Asking for what the run already does changes nothing."""
    conflict = conflict_of(run.history.state, request.action)
    if request.action is RunAction.RESUME:
        await run.look_for_data()
        conflict = conflict or run.supply.fault or None
    if conflict is None:
        await _carry_out(run, request)
    if not request.done.done():
        request.done.set_result(conflict or "")


def conflict_of(state: RunState, action: RunAction) -> str | None:
    """Why `action` cannot be done in `state`, or None."""
    if state.terminal:
        return f"the run has {state}; only a running, paused or queued run can be asked to {action}"
    if state is RunState.STOPPING and action is not RunAction.STOP:
        return f"the run is stopping; it cannot be asked to {action} any more"
    if state is RunState.QUEUED and action is not RunAction.STOP:
        return f"the run is queued until a trainer and a worker join; it can be stopped, but not asked to {action}"
    return None


async def _carry_out(run: Run, request: Request) -> None:
    state = run.history.state
    match request.action:
        case RunAction.PAUSE if state is RunState.RUNNING:
            await run.change_state(RunState.PAUSED, request.reason or "paused by request")
        case RunAction.PAUSE if run.history.waits_for_data:  # now it stays paused when the data is back
            await run.change_state(RunState.PAUSED, request.reason or "paused by request")
        case RunAction.RESUME if state is RunState.PAUSED:
            await run.resume(request.reason or "resumed by request")
        case RunAction.STOP if state is not RunState.STOPPING:
            await run.settle(DropReason.CANCELLED)
            await run.change_state(RunState.STOPPING, request.reason or "stopped by request", ends_as=RunState.STOPPED)


async def serve_control(bus: Bus, run_id: str, take: Callable[[Request], None]) -> Subscription:
    """Hear the requests for one run and pass each to `take`; unsubscribe when the run is no longer held."""

    async def on_message(message: Msg) -> None:
        asked = json.loads(message.data)
        request = Request(RunAction(asked["action"]), str(asked["reason"]), asyncio.get_running_loop().create_future())
        take(request)
        request.done.add_done_callback(lambda done: _reply(message, done))

    return await bus.nc.subscribe(subjects.control(run_id), cb=on_message)


def _reply(message: Msg, done: asyncio.Future[str]) -> None:
    if not done.cancelled():
        task = asyncio.ensure_future(message.respond(done.result().encode()))
        task.add_done_callback(lambda finished: finished.exception())


async def ask(bus: Bus, run_id: str, action: RunAction, reason: str) -> str:
    """Ask whoever holds the run; "" when it is done, else the reason why it cannot be.

    Raises:
        TransientError: no coordinator holds the run now, or it did not answer in time.
    """
    body: dict[str, Any] = {"action": str(action), "reason": reason}
    try:
        reply = await bus.nc.request(subjects.control(run_id), json.dumps(body).encode(), timeout=ANSWER_SECONDS)
    except (nats.errors.NoRespondersError, TimeoutError):
        raise TransientError(
            f"no coordinator that holds run {run_id!r} answered within {ANSWER_SECONDS:g} s; "
            f"try again once one has claimed it"
        ) from None
    return bytes(reply.data).decode()
