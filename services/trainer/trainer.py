"""One rank's part of a run: train a batch, publish a version, write a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from services.trainer import chain, metrics
from services.trainer.agenda import Train
from services.trainer.claim import Claim
from services.trainer.engine import Scorer
from services.trainer.fetching import Fetcher
from services.trainer.learner import Learner
from services.trainer.progress import LearningRate, Progress
from services.trainer.publish import Publisher
from services.trainer.ranks import Ranks
from services.trainer.report import StepReport
from services.trainer.zero import ZeroEngine
from sluice.types import PolicyVersion
from sluice.weights.manifest import Manifest


class Witness(Protocol):
    """Who is shown what a trainer makes."""

    def announce(self, version: PolicyVersion, path: Path, manifest: Manifest, chain: str) -> None:
        """A version was written, with these batches in it."""
        ...

    def report(self, report: StepReport) -> None:
        """A training step is finished."""
        ...


class Saver(Protocol):
    """Who keeps checkpoints."""

    def begin_checkpoint(self, version: PolicyVersion) -> Path:
        """The folder that all ranks write into."""
        ...

    def seal_checkpoint(self, folder: Path, version: PolicyVersion, chain: str, progress: Progress) -> None:
        """All ranks have written."""
        ...

    def settle(self, wait: bool) -> None:
        """Record what is safely on disk; with `wait`, as soon as it is."""
        ...

    def needed(self, versions: Sequence[PolicyVersion]) -> Collection[PolicyVersion]:
        """Those of these published versions that stay, however old they are."""
        ...


class Trainer:
    """The weights of one run and how far they are: `k` batches, the `progress` made with them, the chain over them.

    Every method is a collective call. `witness` and `saver` are rank 0's and None elsewhere.
    """

    def __init__(  # noqa: PLR0913 (a rank's parts, all by keyword)
        self,
        *,
        claim: Claim,
        ranks: Ranks,
        engine: ZeroEngine,
        reference: Scorer | None,
        fetcher: Fetcher,
        publisher: Publisher,
        witness: Witness | None,
        saver: Saver | None,
    ) -> None:
        self._claim, self._ranks, self._engine = claim, ranks, engine
        self._fetcher, self._publisher = fetcher, publisher
        self._witness, self._saver = witness, saver
        self._learner = Learner(engine, ranks, claim.spec, reference)
        self._rate = LearningRate(claim.spec)
        self.k = claim.k
        self.progress = Progress(claim.updates, claim.updated_steps)
        self.chain = claim.chain
        self._seconds: dict[str, float] = {}
        self._idle_since = time.monotonic()

    @property
    def forked(self) -> bool:
        """The weights are those of another run's checkpoint: this run has none of its own."""
        return self._claim.restored is not None and self._claim.restored.foreign

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
        begin = self.progress
        with self._phase("train"):
            outcome = self._learner.train(share.mini_batches, lambda update: self._rate.of(begin, update))
        self.k = batch.k + 1
        self.progress = begin.after(outcome.updates)
        self.chain = chain.extend(self.chain, batch.groups)
        self.publish()
        if item.save:
            self.save()
        counts = self._ranks.gather_replicas((share.prompt_tokens, share.computed_tokens))
        self._seconds["total"] = time.monotonic() - self._idle_since
        self._idle_since = time.monotonic()
        if self._witness is not None:
            prompt_tokens, computed_tokens = (sum(column) for column in zip(*counts, strict=True))
            self._witness.report(
                StepReport(
                    batch=batch,
                    spec=self._claim.spec,
                    version=self.version,
                    outcome=outcome,
                    progress=self.progress,
                    lr=self._rate.of(begin, max(outcome.updates - 1, 0)),
                    prompt_tokens=prompt_tokens,
                    computed_tokens=computed_tokens,
                    seconds=self._seconds,
                )
            )

    def publish(self) -> None:
        """Write the weights as they are as version k.lineage, and announce it."""
        with self._phase("publish"):
            written = self._publisher.write(
                self._engine, self.version if self._witness else None, self.progress.updates
            )
            if self._witness is not None and written is not None:
                self._witness.announce(self.version, *written, self.chain)

    def save(self) -> None:
        """Write a checkpoint of everything that is trained; `settle` records it once it is safely on disk."""
        with self._phase("checkpoint"):
            folder = self._ranks.share(self._saver.begin_checkpoint(self.version) if self._saver else None)
            self._engine.save(folder)
            self._ranks.agree(None)  # every rank's files are written
            if self._saver is not None:
                self._saver.seal_checkpoint(folder, self.version, self.chain, self.progress)

    def settle(self, wait: bool = False) -> None:
        """Record a checkpoint that is safely on disk by now; with `wait`, as soon as it is. Rank 0's alone."""
        if self._saver is not None:
            self._saver.settle(wait)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        with metrics.doing(name):
            yield
        self._seconds[name] = time.monotonic() - begin
