"""Ground truths that no verifier could judge by: refused when the run is created, by file and row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.coordinator.around import Around, NatsWatch
from services.coordinator.board import StatusBoard
from services.coordinator.config import CoordinatorConfig
from services.coordinator.directory import Directory
from services.coordinator.runs import RunReader
from services.coordinator.truths import TRUTHS, TruthCheck
from sluice.config import RunSpec
from sluice.data import load_prompts, manifest_of
from sluice.errors import ConfigError, TransientError
from sluice.telemetry import get_logger
from sluice.transport.nats import Bus
from tests.coordinator.stage import spec
from tests.reward.conftest import Replica

pytestmark = pytest.mark.usefixtures("tiny_model")
TRUTHS_OF_ROWS = ["4", "{7", "6", "{7", " \\frac{1}{2}"]


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    replica = Replica(tmp_path_factory.mktemp("reward") / "log", {"SLUICE_REWARD_VERIFIERS": ""})
    yield replica
    replica.kill()


def rows(folder: Path, truths: list[str]) -> RunSpec:
    file = folder / "rows.jsonl"
    made = [
        {"prompt": f"{n}+1=", "reward_model": {"ground_truth": truth}, "data_source": "math"}
        for n, truth in enumerate(truths)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return spec(data__train_files=[str(file)], data__max_prompt_length=32, reward__verifier=None)


async def test_a_run_with_a_truth_that_its_verifier_cannot_read_is_refused_by_row_and_can_ask_not_to_be(
    bus: Bus, reward: Replica, tmp_path: Path
) -> None:
    truths, run = TruthCheck((reward.address,), 60), rows(tmp_path, TRUTHS_OF_ROWS)
    board = StatusBoard("redis://127.0.0.1:1/0", get_logger("test"))
    directory = Directory(bus, RunReader(bus), board, Around(NatsWatch(), board), truths, CoordinatorConfig())
    with pytest.raises(ConfigError) as refused:
        await directory.create(run, None)
    said = str(refused.value)
    file = tmp_path / "rows.jsonl"
    assert said.startswith(f"data.train_files: 2 of 5 ground truths cannot be judged by: {file}, row 2: ")
    assert f"{file}, row 4: " in said and "reward.check_truths = false" in said
    assert not await directory.list()

    fields = run.model_dump(mode="json")
    fields["reward"]["check_truths"] = False
    unchecked = await directory.create(RunSpec.model_validate(fields), None)
    assert unchecked.data is not None and unchecked.data[TRUTHS]["checked"] is False
    good = await directory.create(rows(tmp_path, ["4", "5", "6"]), None)
    assert good.data is not None and good.data[TRUTHS]["checked"] and "math@" in good.data[TRUTHS]["by"]
    await board.close()


async def test_the_same_data_is_not_checked_again_by_the_same_verifiers(reward: Replica, tmp_path: Path) -> None:
    truths, run = TruthCheck((reward.address,), 60), rows(tmp_path, TRUTHS_OF_ROWS)
    table = load_prompts(run)
    good = load_prompts(rows(tmp_path, ["4"]))
    facts = await truths.facts(run, good, [])
    # A record that this data has passed is believed; one of other data, or of other verifiers, is not.
    passed = manifest_of(run, table) | {TRUTHS: facts}
    assert await truths.facts(run, table, [passed]) == facts
    for other in (passed | {"fingerprint": good.fingerprint}, passed | {TRUTHS: facts | {"by": "older"}}):
        with pytest.raises(ConfigError, match="2 of 5 ground truths"):
            await truths.facts(run, table, [other])


async def test_a_reward_service_that_does_not_answer_is_named_with_the_knob(tmp_path: Path) -> None:
    run = rows(tmp_path, ["4"])
    with pytest.raises(
        TransientError, match=r"cannot be checked now: .*127\.0\.0\.1:1.* 0\.3 s \(SLUICE_TRUTH_CHECK_SECONDS\)"
    ):
        await TruthCheck(("127.0.0.1:1",), 0.3).facts(run, load_prompts(run), [])
    unset = await TruthCheck((), 1).facts(run, load_prompts(run), [])
    assert unset == {"checked": False, "why": "SLUICE_REWARD_ADDRESSES is not set on the coordinator"}
