"""The data set of a held run: its prompts and their history, or what is wrong with the files until they are back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from services.coordinator.curriculum import Curriculum, Difficulty
from services.coordinator.history import RunHistory
from services.coordinator.prompt_source import PromptSource
from sluice.config import RunSpec
from sluice.data import TableCounts
from sluice.data.formats import data_files
from sluice.errors import ConfigError
from sluice.locations import HUB
from sluice.types import Batch, Drop, DropReason, Issue, LedgerRecord, Prompt
from sluice.views import WaitView

HUB_SECONDS = 300.0
"""Time between two tries at data that lies on a hub: there is nothing to look at but the download itself."""


class Supply:
    """Where a held run's prompts come from. Without its data set a run can do all but issue."""

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self.fault = "the data set has not been read yet"
        """Why there are no prompts; empty when there are."""
        self._source: PromptSource | None = None
        self._curriculum: Curriculum | None = None
        self._told: list[Issue | Drop | Batch] = []
        """Records that the curriculum has yet to fold: it needs the data set."""
        self._looked_like: tuple[object, ...] = ()
        self._begun_at = 0.0
        self._rows_read = 0

    @property
    def rows(self) -> int:
        """Prompts of the data set, as it is or as it was when the run was created."""
        if self._source is not None:
            return len(self._source.table)
        return int(self._history.data_manifest.get("prompts", 0))

    async def load(self) -> None:
        """Read the data set; afterwards there are prompts, or `fault` says why not."""
        self._begun_at, self._rows_read = time.monotonic(), 0
        self._looked_like = await asyncio.to_thread(_look, self._history.spec)
        try:
            source = await PromptSource.load(self._history, self._note)
        except ConfigError as error:
            self.fault = str(error)
            return
        curriculum = source.curriculum(self._history.spec)
        await asyncio.to_thread(_fold, curriculum, self._told)
        self._source, self._curriculum, self._told, self.fault = source, curriculum, [], ""

    def _note(self, counts: TableCounts) -> None:
        self._rows_read = counts.rows_read

    def wait(self) -> WaitView:
        """How far `load` is: a large data set takes a minute, in which nothing else of the run goes on."""
        rows = self._history.data_manifest.get("counts", {}).get("rows_read", "?")
        return WaitView(
            name="data",
            waits_for=f"loading data: {self._rows_read} of {rows} rows",
            seconds=time.monotonic() - self._begun_at,
            deadline_seconds=self._history.spec.deadlines.no_progress_seconds,
        )

    async def looks_other(self) -> bool:
        """Whether the files look other than at the last try: whether there is a point in another one."""
        return await asyncio.to_thread(_look, self._history.spec) != self._looked_like

    def fold(self, record: LedgerRecord) -> None:
        """Take the next LEDGER record."""
        if not isinstance(record, Issue | Drop | Batch):
            return
        if self._curriculum is None:
            self._told.append(record)
        else:
            self._curriculum.fold(record)

    def choose(self, planned: Issue, data_limit: int | None) -> Issue:
        """What was planned, but for the draws that the curriculum passes over."""
        assert self._curriculum is not None, "nothing is issued without a data set"
        return self._curriculum.choose(planned, data_limit)

    def prompt(self, n: int) -> Prompt:
        """Prompt n as it was issued."""
        assert self._source is not None, "nothing is published without a data set"
        return self._source.prompt(self._history, n, self._history.version_of(n))

    def drawn(self, n: int) -> tuple[str, Difficulty] | None:
        """Data source, as metrics name it, and difficulty of a group that no record has settled; None if not known."""
        drawn = self._curriculum.drawn(n) if self._curriculum is not None else None
        if drawn is None or self._source is None:
            return None
        return self._source.source_label(drawn[0]), drawn[1]

    @property
    def lots(self) -> Mapping[DropReason, int]:
        """How many prompts return by chance only, by what their last groups were."""
        return {} if self._curriculum is None else self._curriculum.lots


def _fold(curriculum: Curriculum, records: list[Issue | Drop | Batch]) -> None:
    for record in records:
        curriculum.fold(record)


def _look(spec: RunSpec) -> tuple[object, ...]:
    """What can be seen of the files without reading them."""
    return tuple(_trace(location) for location in (*spec.data.train_files, spec.model.path))


def _trace(location: str) -> object:
    if location.startswith(HUB):
        return int(time.monotonic() / HUB_SECONDS)
    path = Path(location)
    try:
        files = sorted(path.glob("*.j*")) if (path / "config.json").is_file() else data_files(path)
        return [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    except (OSError, ConfigError) as error:
        return str(error)
