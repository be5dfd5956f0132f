"""Runs on a real API server whose training steps a test tells one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import main
from sluice.evaluation_views import EvaluationView, MetricView, RunEvaluationView, SourceView
from sluice.types import RunState
from sluice.views import EventView
from tests.api.run_shelf import NOW, RunShelf, ThreadServer

ROOT = Path(__file__).parents[2]
BATCH: dict[str, Any] = {
    "keep_rate": 0.75,
    "sampled_groups": 16,
    "dropped": {"all_correct": 3, "all_wrong": 1},
    "staleness": {"0": 4, "1": 12},
    "response_length_mean": 3.25,
    "truncated_share": 0.25,
    "tokens_per_second": None,
}
TRAINING: dict[str, Any] = {
    "clip_fraction_high": 0.25,
    "clip_fraction_low": 0.125,
    "truncated_share": 0.5,
    "seconds": {"wait": 1.5, "total": 4.0},
}


class ForgetfulShelf(RunShelf):
    """Its events lack those of `lost`, by kind and step; its ledger does not."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[tuple[str, int]] = set()

    async def events(self, run_id: str, last_event_id: int) -> AsyncIterator[EventView]:
        async for event in super().events(run_id, last_event_id):
            if (event.kind, event.fields.get("step")) not in self.lost:
                yield event


class TrackedRun:
    """A run with the id `id` on the server at `url`."""

    def __init__(self, server: ThreadServer, shelf: ForgetfulShelf) -> None:
        self.url, self._server, self._shelf = server.url, server, shelf
        assert main(["run", "configs/tiny.toml", "--detach", "--at", server.url]) == 0
        self.id = next(reversed(shelf.runs))

    def batch(self, step: int) -> None:
        fields = {**BATCH, "reward_mean": step / 100, "elapsed_seconds": 10.0 * step}
        self._server.do(self._shelf.emit(self.id, "batch", step=step, **fields))

    def train(self, step: int, loss: float | None = None) -> None:
        fields = {**TRAINING, "loss": step / 10 if loss is None else loss, "version": f"v{step + 1}.1"}
        self._server.do(self._shelf.emit(self.id, "step", step=step, **fields))
        self._shelf.change(self.id, training_steps=step + 1)

    def steps(self, *steps: int) -> None:
        """Batches and their training, with the next batch emitted before the training of each is done."""
        self.batch(steps[0])
        for step in steps:
            if step != steps[-1]:
                self.batch(step + 1)
            self.train(step)

    def evaluate(self, number: int, avg: float) -> None:
        """The evaluation of version `number` ends with this avg@8, on a set called `sums`."""
        metric = MetricView(value=avg, low=avg - 0.1, high=avg + 0.1, problems=9)
        every = SourceView(data_source="all", problems=9, samples=72, metrics={"avg@8": metric, "pass@8": metric})
        result = EvaluationView(
            model="tiny", weights="w", settings={"samples": 8}, rows_read=9, duplicates=0, all=every, sources=()
        )
        view = RunEvaluationView(
            number=number, version=f"v{number}.1", state="finished", ended_at=NOW, sets={"sums": result}
        )
        self._shelf.evaluated.append(view)
        self._server.do(
            self._shelf.emit(self.id, "evaluation", number=number, version=view.version, scores=view.scores)
        )

    def lose_events(self, kind: str, *steps: int) -> None:
        """As after 24 hours: nobody tells them any more, and the ledger still knows the batches."""
        self._shelf.lost |= {(kind, step) for step in steps}

    def end(self, state: RunState = RunState.SUCCEEDED) -> None:
        self._shelf.change(self.id, state=state)
        self._server.do(self._shelf.emit(self.id, "state", state=str(state)))

    def track(self, *targets: str, options: tuple[str, ...] = ()) -> int:
        """Exit code of the command."""
        to = [word for target in targets for word in ("--to", target)]
        return main(["track", self.id, "--at", self.url, *to, *options])


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run files name paths relative to the project, and nothing of the user's shell may count."""
    monkeypatch.chdir(ROOT)
    for name in ("SLUICE_API_URL", "SLUICE_API_TOKEN", "SLUICE_TRACK_TO"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shelf() -> ForgetfulShelf:
    return ForgetfulShelf()


@pytest.fixture
def server(shelf: ForgetfulShelf) -> Iterator[ThreadServer]:
    with ThreadServer(shelf) as running:
        yield running


@pytest.fixture
def run(server: ThreadServer, shelf: ForgetfulShelf, capsys: pytest.CaptureFixture[str]) -> TrackedRun:
    created = TrackedRun(server, shelf)
    capsys.readouterr()
    return created
