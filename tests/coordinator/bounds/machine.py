"""Random schedules, failures and restarts against the coordinator's real logic.

Every step is one effect of one part: a message is heard, a group is stored, a trainer falls back, a coordinator dies
between two effects, a frozen one wakes up. `Truth` judges each record when it is stored; between steps the run is
rebuilt from what its holder has read, and must decide what the holder decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sluice.types import GroupStatus, RunCreated, RunState
from sluice.views import RunAction
from tests.coordinator.bounds.cast import RUN, Trainer, Workers, wants_checkpoint
from tests.coordinator.bounds.coordinators import FEW, PICK, Coordinators
from tests.coordinator.bounds.streams import Message, Streams
from tests.coordinator.bounds.truth import Bounds, Truth
from tests.coordinator.stage import spec

MIXED, RIGHT, WRONG, EVEN = (1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.5, 0.5)
OUTCOMES = st.sampled_from([MIXED, MIXED, MIXED, RIGHT, WRONG, EVEN, GroupStatus.FAILED, GroupStatus.VERIFIER_FAILED])
SEVEN = {"data__train_files": ["tests/coordinator/bounds/seven.jsonl"], "data__total_epochs": 1}
"""Prompts that most schedules exhaust."""
ROUNDS_TO_END = 300
ENDLESS = 1 << 20

KINDS = st.sampled_from(
    [
        *[{}] * 4,
        {"asynchrony__stragglers": "drop"},
        {**SEVEN},
        {**SEVEN, "trainer__last_batch": "drop"},
        {"filter__gen_batch_size": 3, "filter__max_generation_batches": 2},
        {"asynchrony__overissue": 2, "asynchrony__max_staleness": 0},
        {"filter__mode": "rounds", "filter__gen_batch_size": 3, "asynchrony__max_staleness": 0},
    ]
)


class Run(Coordinators):
    """One run, from its creation to its end."""

    @initialize(
        size=st.tuples(st.integers(1, 3), st.integers(3, 6)),
        staleness=st.sampled_from([0, 1, 1, 2, 2, 3]),
        kind=KINDS,
        slow=st.sampled_from([ENDLESS, 3, 4, 5, 7]),
        moves=st.tuples(st.integers(0, 2**16), st.integers(0, 180)),
    )
    def begin(
        self, size: tuple[int, int], staleness: int, kind: dict[str, Any], slow: int, moves: tuple[int, int]
    ) -> None:
        """A run of so many groups a batch and so many batches, two of `slow` groups slow, after some ordinary steps."""
        self.slow = slow
        batch_size, steps = size
        changes = {"asynchrony__max_staleness": staleness, **kind}
        changes |= {"trainer__prompts_per_step": batch_size, "trainer__total_steps": steps}
        run = spec(retry__max_trainer_restarts=None, **changes)
        rounds = run.filter.gen_batch_size if run.filter.mode == "rounds" else None
        bounds = Bounds(
            batch_size=batch_size,
            max_staleness=run.asynchrony.max_staleness,
            total_steps=steps,
            overissue=run.asynchrony.overissue,
            rounds=rounds or 0,
            data_limit=7 if run.data.total_epochs else None,
            wait=run.asynchrony.stragglers == "wait" and not rounds and not run.asynchrony.overissue,
        )
        self.truth = Truth(bounds)
        self.streams = Streams(self.truth)
        self.streams.add_ledger(RunCreated(RUN, run.canonical_json, run.config_hash), last=0)
        self.workers, self.trainer = Workers(self.streams), Trainer(self.streams)
        self.trainer.start()
        self.take_over()
        self.a_second_goes_by()
        self.the_run_goes_on(*moves)

    # ---------------------------------------------------------------- workers

    @precondition(lambda self: self.workers.offered())
    @rule(count=FEW, pick=PICK, ahead=st.integers(0, 2), accs=OUTCOMES)
    def a_worker_generates(self, count: int, pick: int, ahead: int, accs: Any) -> None:
        for _ in range(count):
            if offered := self.workers.offered():
                self.workers.generate(offered[pick % len(offered)], ahead, accs)

    @precondition(lambda self: self.workers.offered(twice=True))
    @rule(pick=PICK, accs=OUTCOMES)
    def another_gets_the_prompt_of_a_silent_one(self, pick: int, accs: Any) -> None:
        offered = self.workers.offered(twice=True)
        self.workers.generate(offered[pick % len(offered)], 2, accs)

    @precondition(lambda self: self.workers.attempts)
    @rule(count=FEW, pick=PICK, acked=st.sampled_from([True, True, True, False]))
    def a_worker_stores_groups(self, count: int, pick: int, acked: bool) -> None:
        for _ in range(min(count, len(self.workers.attempts))):
            self.workers.commit(self.workers.attempts[pick % len(self.workers.attempts)], acked)

    @precondition(lambda self: self.workers.attempts)
    @rule(pick=PICK)
    def a_worker_stores_a_group_that_no_coordinator_can_read(self, pick: int) -> None:
        self.workers.commit(self.workers.attempts[pick % len(self.workers.attempts)], acked=True, readable=False)

    @precondition(lambda self: self.workers.attempts)
    @rule(pick=PICK)
    def a_worker_dies(self, pick: int) -> None:
        self.workers.attempts.pop(pick % len(self.workers.attempts))

    @precondition(lambda self: self.streams.in_the_air)
    @rule()
    def prompts_land_after_their_senders_death(self) -> None:
        self.streams.prompts += self.streams.in_the_air
        self.streams.in_the_air.clear()

    @precondition(lambda self: self.truth.issued)
    @rule(pick=PICK)
    def a_prompt_is_published_once_more(self, pick: int) -> None:
        n = pick % self.truth.issued
        self.streams.prompts.append(Message(n, self.version_at_issue(n)))

    def version_at_issue(self, n: int) -> int:
        history = self.holder.run.history if self.holder else None
        return history.version_of(n) if history and n < history.next_n else self.truth.version

    # ---------------------------------------------------------------- the trainer

    @precondition(lambda self: self.trainer.k < len(self.truth.batches))
    @rule()
    def the_trainer_trains(self) -> None:
        self.trainer.train()

    @precondition(lambda self: self.trainer.k > max(self.trainer.checkpoints, default=0))
    @rule()
    def the_trainer_checkpoints(self) -> None:
        self.trainer.checkpoint()

    @precondition(lambda self: self.trainer.lineage < 8)
    @rule(damaged=st.booleans())
    def the_trainer_falls_back(self, damaged: bool) -> None:
        self.trainer.restart(damaged)

    # ---------------------------------------------------------------- all of them

    @rule(seed=st.integers(0, 2**16), moves=st.integers(1, 40))
    def the_run_goes_on(self, seed: int, moves: int) -> None:
        """So many ordinary steps in random order: without them few schedules would come far."""
        rng = random.Random(seed)
        for _ in range(moves):
            rng.choice(self.ordinary_moves(rng))()
            if rng.random() < 0.1:
                self.a_rebuild_decides_the_same()

    def ordinary_moves(self, rng: random.Random) -> list[Callable[[], None]]:
        moves: list[Callable[[], None]] = []
        pick, accs = rng.randrange(12), rng.choice((MIXED, MIXED, MIXED, RIGHT, WRONG, GroupStatus.FAILED))
        if self.workers.offered():
            moves += [lambda: self.a_worker_generates(1, pick, rng.randrange(3), accs)] * 3
        patient = rng.random() < 0.95
        if quick := [a for a in self.workers.attempts if a.message.n % self.slow not in (1, 2) or not patient]:
            moves += [lambda: self.workers.commit(rng.choice(quick), acked=True)] * 3
        if self.trainer.k < len(self.truth.batches):
            moves += [self.the_trainer_trains]
        if self.trainer.k > max(self.trainer.checkpoints, default=0):
            moves += [self.the_trainer_checkpoints]
        return [*moves, *self.moves_of_the_holder(rng.choice((1, 1, 4)))]

    def moves_of_the_holder(self, together: int) -> list[Callable[[], None]]:
        if not self.holder:
            return [self.take_over]
        heard = [lambda: self.groups_are_heard(1, together), lambda: self.issued_prompts_are_offered(together)] * 3
        asleep = self.held().run.history.state is not RunState.RUNNING
        asks = [lambda: self.somebody_asks(RunAction.RESUME), self.a_second_goes_by] if asleep else []
        return [*heard, self.a_trainer_record_is_heard, *asks]

    # ---------------------------------------------------------------- the end

    def teardown(self) -> None:
        with self.resources:
            if not self.sound:
                return  # an assertion has ended it already
            for _ in range(ROUNDS_TO_END):
                if self.one_fair_round():
                    break
            else:
                raise AssertionError(f"the run does not end: {self.truth.stuck() or self.truth}")
            assert len(self.truth.settled) == self.truth.issued, "every group that was issued is settled on record"

    def one_fair_round(self) -> bool:
        """Everybody does what there is to do; whether the run has ended."""
        if self.holder is None:
            self.take_over()
            return False
        self.a_second_goes_by()
        if self.holder and self.holder.run.history.state is RunState.PAUSED:
            self.somebody_asks(RunAction.RESUME)
        for message in self.workers.offered():
            self.workers.generate(message, 0, MIXED)
        for attempt in list(self.workers.attempts):
            self.workers.commit(attempt, acked=True)
        while self.trainer.train():
            pass
        if wants_checkpoint(self.streams) and self.trainer.k > max(self.trainer.checkpoints, default=0):
            self.trainer.checkpoint()
        if self.holder:
            self.everything_is_heard()
        return self.holder is not None and self.held().run.history.state.terminal
