"""The best checkpoint by an evaluation stays, whatever comes after it, and is found again by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.trainer.bus import NatsThread
from services.trainer.checkpoint import CheckpointStore
from services.trainer.claim import Claim
from services.trainer.evaluations import Evaluations
from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.errors import ConfigError
from sluice.evaluation_views import EvaluationView, MetricView, SourceView
from sluice.telemetry import get_logger
from sluice.transport.evaluations import evaluations_log
from sluice.transport.nats import Bus
from sluice.types import (
    Checkpoint,
    EvaluationBegun,
    EvaluationEnded,
    EvaluationOutcome,
    PolicyVersion,
    RunCreated,
)
from sluice.wire.records import encode_ledger
from tests.servers import NatsServer
from tests.trainer.script import RUN
from tests.trainer.test_checkpoints import seal

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def spec(keep_best: str = "sums/avg@8", every_steps: int = 5) -> RunSpec:
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["evaluation"] |= {"sets": [{"name": "sums", "files": ["x"]}], "samples": 8, "every_steps": every_steps}
    fields["checkpoint"] |= {"interval": 5, "keep": 2, "keep_best": keep_best}
    return parse_run_spec(fields)


class Place:
    """One run's evaluations as its coordinator writes them, and its trainer's view of them."""

    def __init__(self, server: NatsServer) -> None:
        self.nats = NatsThread(get_logger("trainer"), 10.0)
        self.bus = self.nats.call(Bus.connect(server.url, "test", 10.0), "nats")
        self.nats.call(self.bus.ensure_streams(), "nats")
        self._records = evaluations_log(self.bus, RUN)

    def trainer(self) -> Evaluations:
        """As one that has just started sees them."""
        created = encode_ledger(RunCreated(RUN, "{}", "x"))
        return Evaluations(self.nats, self.bus, Claim(RUN, spec(), "x", 1, None, (1, created)))

    def evaluate(self, number: int, avg: float, outcome: EvaluationOutcome = EvaluationOutcome.FINISHED) -> None:
        metric = MetricView(value=avg, low=avg, high=avg, problems=3)
        every = SourceView(data_source="all", problems=3, samples=24, metrics={"avg@8": metric})
        view = EvaluationView(
            model="m", weights="w", settings={"samples": 8}, rows_read=3, duplicates=0, all=every, sources=()
        )
        version = PolicyVersion(number, 1)
        results = json.dumps({"sums": view.model_dump(mode="json")})
        self.nats.call(self._records.append(EvaluationBegun(version, 1, 24, "{}")), "record")
        self.nats.call(self._records.append(EvaluationEnded(version, outcome, "", results)), "record")


@pytest.fixture
def place(nats_server: NatsServer) -> Iterator[Place]:
    place = Place(nats_server)
    yield place
    place.nats.call(place.bus.close(), "nats")
    place.nats.close()


def test_the_best_checkpoint_and_those_that_may_yet_be_stay_beside_the_newest(place: Place, tmp_path: Path) -> None:
    store, evaluations, rule = CheckpointStore(tmp_path, RUN), place.trainer(), spec().checkpoint
    kept: list[Checkpoint] = []

    def prune() -> list[int]:
        nonlocal kept
        if (best := evaluations.best(kept)) is not None:
            store.mark_best(best[0])
        kept = store.prune(kept, rule, evaluations.wanted(kept))
        return [record.k for record in kept]

    for k in (5, 10, 15, 20):
        kept.append(seal(store, k))
    assert prune() == [5, 10, 15, 20], "none of them is evaluated yet"
    assert not (tmp_path / RUN / "best").exists()
    place.evaluate(0, 0.9)  # of the initial model, which has no checkpoint
    place.evaluate(5, 0.5)
    place.evaluate(10, 0.4)
    assert prune() == [5, 15, 20]
    assert (tmp_path / RUN / "best").resolve().name == "5.1"
    place.evaluate(15, 0.8, EvaluationOutcome.INCOMPLETE)
    place.evaluate(20, 0.6)
    assert prune() == [15, 20], "what is incomplete is no comparison"
    assert (tmp_path / RUN / "best").resolve().name == "20.1"
    kept += [seal(store, 25), seal(store, 20, lineage=2)]
    evaluations = place.trainer()  # started again, it reads the same
    assert prune() == [25, 20]
    assert (tmp_path / RUN / "best").resolve().name == "20.2", "the same batches, trained again"


def test_the_weights_of_the_best_version_stay_until_a_better_one_is_known(place: Place) -> None:
    evaluations = place.trainer()
    versions = [PolicyVersion(number, 1) for number in range(1, 12)]
    assert evaluations.needed(versions) == {versions[4], versions[9]}, "due, and not evaluated"
    place.evaluate(5, 0.5)
    place.evaluate(10, 0.5)
    assert evaluations.needed(versions) == {versions[4]}, "of equal ones the earlier"


@pytest.mark.parametrize(
    ("keep_best", "every_steps", "message"),
    [
        ("sums", 5, "must be SET/KIND@K, such as aime-2024/avg@32"),
        ("others/avg@8", 5, "there is no evaluation set 'others'; evaluation.sets has sums"),
        ("sums/avg@4", 5, r"evaluation.samples = 8 gives avg@k for k = \[8\]"),
        ("sums/pass@3", 5, r"evaluation.samples = 8 gives pass@k for k = \[1, 2, 4, 8\]"),
        ("sums/avg@8", 3, "every_steps = 3 must be a multiple of checkpoint.interval = 5"),
    ],
)
def test_a_metric_that_no_evaluation_gives_is_refused(keep_best: str, every_steps: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(keep_best, every_steps)
