"""One rank's part of a run: train a batch, publish a version, write a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from services.trainer import chain
from services.trainer.agenda import Train
from services.trainer.claim import Claim
from services.trainer.fetching import Fetcher
from services.trainer.learner import Learner, Outcome
from services.trainer.publish import Publisher
from services.trainer.ranks import Ranks
from services.trainer.records import Recorder
from services.trainer.report import StepReport
from services.trainer.zero import ZeroEngine
from sluice.config import OptimConfig
from sluice.types import PolicyVersion


class Trainer:
    """The weights of one run and how far they are: `k` batches, `updates` optimizer updates, the chain over them.

    Every method is a collective call. `recorder` is rank 0's and None elsewhere.
    """

    def __init__(
        self,
        claim: Claim,
        ranks: Ranks,
        engine: ZeroEngine,
        fetcher: Fetcher,
        publisher: Publisher,
        recorder: Recorder | None,
    ) -> None:
        self._claim, self._ranks, self._engine = claim, ranks, engine
        self._fetcher, self._publisher, self._recorder = fetcher, publisher, recorder
        self._learner = Learner(engine, ranks, claim.spec)
        self.k = claim.k
        self.updates = claim.restored.manifest.optimizer_updates if claim.restored else 0
        self.chain = claim.restored.manifest.chain if claim.restored else chain.genesis(claim.config_hash)
        self._seconds: dict[str, float] = {}
        self._idle_since = time.monotonic()

    @property
    def version(self) -> PolicyVersion:
        """The name of the weights as they are."""
        return PolicyVersion(self.k, self._claim.lineage)

    def step(self, item: Train) -> None:
        """One training step: fetch, update, publish, checkpoint when due, and tell people."""
        self._seconds = {"wait": time.monotonic() - self._idle_since}
        batch = item.batch
        with self._phase("fetch"):
            share = self._fetcher.fetch(batch)
        rate = learning_rate(self._claim.spec.optim, batch.k)
        outcome: Outcome | None = None
        with self._phase("train"):
            if share.mini_batches:
                outcome = self._learner.train(share.mini_batches, rate, [g.n for g in batch.groups])
        self.k = batch.k + 1
        self.updates += outcome.updates if outcome else 0
        self.chain = chain.extend(self.chain, batch.groups)
        self.publish()
        if item.save:
            self.save()
        counts = self._ranks.gather((share.prompt_tokens, share.computed_tokens))
        self._seconds["total"] = time.monotonic() - self._idle_since
        self._idle_since = time.monotonic()
        if self._recorder is not None:
            prompt_tokens, computed_tokens = (sum(column) for column in zip(*counts, strict=True))
            self._recorder.report(
                StepReport(
                    batch=batch,
                    version=self.version,
                    outcome=outcome,
                    lr=rate,
                    ranks=self._ranks.world_size,
                    prompt_tokens=prompt_tokens,
                    computed_tokens=computed_tokens,
                    seconds=self._seconds,
                )
            )

    def publish(self) -> None:
        """Write the weights as they are as version k.lineage, and announce it."""
        with self._phase("publish"):
            written = self._publisher.write(self._engine, self.version if self._recorder else None, self.updates)
            if self._recorder is not None and written is not None:
                self._recorder.announce(self.version, written[0], written[1].hash, self.chain)

    def save(self) -> None:
        """Write a checkpoint of everything that is trained; `settle` records it once it is safely on disk."""
        with self._phase("checkpoint"):
            folder = self._ranks.share(self._recorder.begin_checkpoint(self.version) if self._recorder else None)
            self._engine.save(folder)
            self._ranks.agree(None)  # every rank's files are written
            if self._recorder is not None:
                self._recorder.seal_checkpoint(folder, self.version, self.chain, self.updates)

    def settle(self, wait: bool = False) -> None:
        """Record a checkpoint that is safely on disk by now; with `wait`, as soon as it is. Rank 0's alone."""
        if self._recorder is not None:
            self._recorder.settle(wait)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._seconds[name] = time.monotonic() - begin


def learning_rate(optim: OptimConfig, k: int) -> float:
    """Constant after a linear warm-up: training step k (from 0) has `lr · min(1, (k + 1) / lr_warmup_steps)`."""
    return optim.lr * min(1.0, (k + 1) / max(optim.lr_warmup_steps, 1))
