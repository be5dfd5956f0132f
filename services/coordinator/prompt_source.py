"""Where a run's prompts come from: its data set, in the order and with the seeds that follow from its spec."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from services.coordinator.curriculum import Curriculum
from services.coordinator.history import RunHistory
from sluice.config import RunSpec
from sluice.data import PromptTable, check_unchanged, load_prompts, seed_of, stop_token_ids, tokenizer_of
from sluice.data.table import Progress
from sluice.types import Prompt, Sampling

SOURCE_LABELS = 15


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The run's data set, ready to be issued: row and seeds are pure functions of the issue number."""

    table: PromptTable
    stop_token_ids: tuple[int, ...]
    tokenizer: Tokenizer
    common_sources: frozenset[str]
    """The data sources with the most prompts, which metrics tell apart."""

    @classmethod
    async def load(cls, history: RunHistory, progress: Progress | None = None) -> PromptSource:
        """Read and tokenise the data set in a thread, which tells `progress` how far it is.

        Raises:
            ConfigError: it cannot be read, or is not what the run was created with.
        """
        table = await asyncio.to_thread(load_prompts, history.spec, progress)
        check_unchanged(history.data_manifest, table)
        if history.origin is not None:
            table = table.going_on_from(history.origin)
        stops = await asyncio.to_thread(stop_token_ids, history.spec)
        tokenizer = await asyncio.to_thread(tokenizer_of, history.spec)
        rows = await asyncio.to_thread(lambda: Counter(map(table.data_source, range(len(table)))))
        return cls(table, stops, tokenizer, frozenset(source for source, _ in rows.most_common(SOURCE_LABELS)))

    def source_label(self, data_source: str) -> str:
        """`data_source`, or `other`: metrics have a bounded number of labels."""
        return data_source if data_source in self.common_sources else "other"

    def text(self, token_ids: Iterable[int]) -> str:
        """A response as verifiers and people read it."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def curriculum(self, spec: RunSpec) -> Curriculum:
        """The history of this data set's prompts, before the first record."""
        return Curriculum(
            spec.curriculum,
            spec.trainer.seed,
            row_of=lambda draw: self.table.draw(draw)[1],
            source_of=self.table.data_source,
        )

    def prompt(self, history: RunHistory, n: int, version: int) -> Prompt:
        """Prompt n as issued at policy version number `version`."""
        spec = history.spec
        epoch, index = self.table.draw(history.draws.of(n))
        row = self.table.row(index)
        return Prompt(
            run_id=history.run_id,
            n=n,
            index=index,
            epoch=epoch,
            token_ids=tuple(row.token_ids),
            text=row.text,
            ground_truth=row.ground_truth,
            data_source=spec.reward.verifier or row.data_source,
            extra_info=row.extra_info,
            group_size=spec.rollout.group_size,
            sampling=Sampling(
                spec.rollout.max_response_length,
                spec.rollout.temperature,
                spec.rollout.top_p,
                spec.rollout.top_k,
                self.stop_token_ids,
            ),
            seed=seed_of(spec.trainer.seed, n),
            min_version=version,
        )


class SourceShelf:
    """Data sets of runs that somebody asked about, kept in memory: all who ask about a run share one."""

    def __init__(self) -> None:
        self._known: dict[str, PromptSource] = {}
        self._loading = asyncio.Lock()

    async def of(self, history: RunHistory) -> PromptSource:
        """Raises: ConfigError: as `PromptSource.load`."""
        async with self._loading:
            if history.run_id not in self._known:
                self._known[history.run_id] = await PromptSource.load(history)
            return self._known[history.run_id]
