"""The coordinators of a state machine: what may happen to whoever holds the run, and to those who held it once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.coordinator.control import Request
from services.coordinator.loop import Tick
from services.coordinator.staff import Beat, Staff
from sluice.errors import FencedError
from sluice.types import RunState
from sluice.views import RunAction, WorkerView
from tests.coordinator.bounds.cast import RUN, Coordinator, Trainer, Workers, in_memory, state_of
from tests.coordinator.bounds.streams import DiedError, Streams
from tests.coordinator.bounds.truth import Truth

FEW = st.integers(1, 4)
PICK = st.integers(0, 11)
BEAT = Beat(Staff((WorkerView.model_validate({"name": "w", "run": RUN}),)))


class Coordinators(RuleBasedStateMachine):
    """One holds the run; others have died, or are frozen and believe that they hold it."""

    truth: Truth
    streams: Streams
    workers: Workers
    trainer: Trainer

    def __init__(self) -> None:
        super().__init__()
        self.resources, self.runner = ExitStack(), asyncio.Runner()
        self.resources.enter_context(self.runner)
        self.resources.enter_context(in_memory())
        self.holder: Coordinator | None = None
        self.frozen: list[Coordinator] = []
        self.sound = False
        """No step has failed, and there is a run."""

    def acts(self, work: Coroutine[Any, Any, object], who: Coordinator | None = None) -> None:
        """One coordinator does something; it ends if it dies of it, or was overtaken."""
        self.sound = False
        try:
            self.runner.run(work)
        except (DiedError, FencedError) as error:
            assert who is not self.holder or isinstance(error, DiedError), "nobody has overtaken the holder"
            if who is self.holder:
                self.holder = None
            elif who in self.frozen:
                self.frozen.remove(who)
        self.sound = True

    def held(self) -> Coordinator:
        assert self.holder is not None
        return self.holder

    @precondition(lambda self: self.holder)
    @rule(count=FEW, together=FEW)
    def groups_are_heard(self, count: int, together: int) -> None:
        for _ in range(count):
            if self.holder:
                self.acts(self.held().hear_groups(together), self.holder)

    @precondition(lambda self: self.holder)
    @rule(count=FEW)
    def issued_prompts_are_offered(self, count: int) -> None:
        self.acts(self.held().offer(count), self.holder)

    @precondition(lambda self: self.holder)
    @rule()
    def a_trainer_record_is_heard(self) -> None:
        self.acts(self.held().hear_trainer(), self.holder)

    @precondition(lambda self: self.holder)
    @rule()
    def everything_is_heard(self) -> None:
        self.acts(self.held().catch_up(), self.holder)
        if self.holder and self.holder.run.history.state is RunState.RUNNING:
            assert self.truth.stuck() == "" or self.holder.run.queue.at_generation_limit or self.limited()

    def limited(self) -> bool:
        """The generation batches that are allowed do not fill the capacity."""
        return self.held().run.queue.generation_limit is not None

    @precondition(lambda self: self.holder)
    @rule()
    def a_second_goes_by(self) -> None:
        self.acts(self.held().hear(Tick(BEAT)), self.holder)

    @precondition(lambda self: self.holder)
    @rule(action=st.sampled_from([RunAction.PAUSE, RunAction.RESUME, RunAction.RESUME]))
    def somebody_asks(self, action: RunAction) -> None:
        async def ask() -> None:
            done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            await self.held().hear(Request(action, "", done))

        self.acts(ask(), self.holder)

    @precondition(lambda self: self.holder and len(self.truth.batches) > 1)
    @rule(sure=st.sampled_from([False, False, False, True]))
    def somebody_stops_it(self, sure: bool) -> None:
        if sure:
            self.somebody_asks(RunAction.STOP)

    @precondition(lambda self: self.holder and self.held().connection.effects_left is None)
    @rule(effects=st.integers(0, 6), lands=st.booleans())
    def the_coordinator_will_die(self, effects: int, lands: bool) -> None:
        self.held().connection.effects_left = effects
        self.held().connection.last_one_lands = lands

    @precondition(lambda self: self.holder)
    @rule()
    def the_coordinator_dies(self) -> None:
        self.holder = None

    @precondition(lambda self: self.holder and len(self.frozen) < 2)
    @rule()
    def the_coordinator_freezes(self) -> None:
        self.frozen.append(self.held())
        self.holder = None

    @precondition(lambda self: not self.holder)
    @rule()
    def take_over(self) -> None:
        self.holder = Coordinator(self.streams)
        self.acts(self.held().take_over(f"c{len(self.streams.ledger)}"), self.holder)

    @precondition(lambda self: self.frozen)
    @rule(pick=PICK)
    def a_frozen_one_wakes(self, pick: int) -> None:
        """It goes on with what it has heard, until a record of its own is refused."""
        who, before = self.frozen[pick % len(self.frozen)], len(self.streams.ledger)
        self.acts(who.catch_up(), who)
        if self.holder:
            assert len(self.streams.ledger) == before, "it has written over its successor"

    @invariant()
    def a_rebuild_decides_the_same(self) -> None:
        if self.holder:
            rebuilt, held = state_of(self.runner.run(self.holder.successor())), state_of(self.holder.run)
            differ = {name: (rebuilt[name], held[name]) for name in held if rebuilt[name] != held[name]}
            assert not differ, f"rebuilt and held differ: {differ}"
