"""A run goes on with another number of ranks than wrote its checkpoint, and with the same number to the bit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer import chain
from services.trainer.checkpoint import CheckpointManifest, CheckpointStore, facts_of_files
from services.trainer.config import TrainerSettings
from services.trainer.ranks import Ranks
from services.trainer.universal import universal_form
from sluice.errors import PermanentError
from sluice.telemetry import get_logger
from sluice.transport.log import trainer_log
from sluice.transport.nats import Bus
from sluice.types import Checkpoint, Lineage, RunState
from tests.trainer import resizing, several_ranks
from tests.trainer.resizing import STAGES, State
from tests.trainer.running import chain_by_hand, events, lineages, tensors, torchrun, train, versions
from tests.trainer.script import RUN, Script, make_spec

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")

LOG = get_logger("trainer")
NEAR = 1e-4
"""Largest difference of a state by the number of ranks, of its largest value: sums of gradients in another order."""


@pytest.fixture(scope="module")
def found(tiny_model: Path, one_rank: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """By stage: what one rank and two ranks wrote, and what each made of the other's checkpoint."""
    folder = tmp_path_factory.mktemp("resized")
    by_stage: dict[int, dict[str, Any]] = {}
    for stage in STAGES:
        by_stage[stage] = {"1": resizing.write(folder / f"one.{stage}", resizing.spec_of(tiny_model, stage), one_rank)}
        record = resizing.seal(folder / f"1.{stage}", folder / f"one.{stage}", ranks=1)
        by_stage[stage] |= {"record": record, "universal": universal_form(record, LOG)}
    of_two = several_ranks.run("resized", 2, tiny_model, folder)
    for stage in STAGES:
        universal = universal_form(resizing.seal(folder / f"2.{stage}.sealed", folder / f"2.{stage}", ranks=2), LOG)
        by_stage[stage]["2 to 1"] = resizing.resume(universal, resizing.spec_of(tiny_model, stage), one_rank, True)
        by_stage[stage] |= dict(zip(("2", "2 to 2", "1 to 2"), of_two[stage], strict=True))
    return by_stage


def equal(one: State, other: State) -> bool:
    return all(torch.equal(one[name][part], other[name][part]) for name in one for part in one[name])


def distance(one: State, other: State) -> float:
    """Largest difference of any value, of the largest value of its kind."""
    return max(
        float((one[name][part] - other[name][part]).abs().max() / one[name][part].abs().max())
        for name in one
        for part in one[name]
    )


@pytest.mark.parametrize("stage", STAGES)
def test_as_many_ranks_go_on_to_the_same_bits(found: dict[int, dict[str, Any]], stage: int) -> None:
    written, resumed = found[stage]["2"], found[stage]["2 to 2"]
    assert torch.equal(written["rng"], resumed["rng"])
    assert equal(written["next"], resumed["next"])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ranks", ["1 to 2", "2 to 1"])
def test_another_number_of_ranks_has_the_same_state_to_the_bit_and_goes_on_as_if_it_had_always_been_so_many(
    found: dict[int, dict[str, Any]], ranks: str, stage: int
) -> None:
    written, resumed, undisturbed = found[stage][ranks[0]], found[stage][ranks], found[stage][ranks[-1]]
    assert equal(written["saved"], resumed["saved"])
    assert torch.equal(written["rng"], resumed["rng"])
    assert distance(resumed["saved"], resumed["next"]) > 100 * NEAR
    assert distance(undisturbed["next"], resumed["next"]) < NEAR


def test_a_universal_form_is_used_again_if_it_is_whole_and_made_again_if_it_is_not(
    found: dict[int, dict[str, Any]],
) -> None:
    record, folder = found[1]["record"], found[1]["universal"]
    whole, made = facts_of_files(folder), folder.stat().st_ino
    assert universal_form(record, LOG) == folder
    assert folder.stat().st_ino == made
    next(folder.rglob("exp_avg.pt")).write_bytes(b"damaged")
    assert universal_form(record, LOG) == folder
    assert facts_of_files(folder).keys() == whole.keys()
    assert facts_of_files(folder) == whole


def test_a_checkpoint_that_cannot_be_converted_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.1" / "engine").mkdir(parents=True)
    with pytest.raises(PermanentError, match=r"1\.1 cannot be converted for another number of ranks: .*FileNotFound"):
        universal_form(Checkpoint(1, 1, str(tmp_path / "1.1"), "", ""), LOG)
    assert [folder.name for folder in tmp_path.iterdir()] == ["1.1"]


@pytest.mark.usefixtures("one_rank")
async def test_one_rank_takes_over_from_two_of_torchrun_and_replays_from_the_newest_whole_checkpoint(
    bus: Bus, tiny_model: Path, settings: TrainerSettings, tmp_path: Path
) -> None:
    optim = {"lr": 1e-3, "lr_warmup_steps": 4}
    script = Script(bus, make_spec(tiny_model, checkpoint={"interval": 1}, optim=optim))
    await script.create()
    for _ in range(2):
        await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await asyncio.to_thread(torchrun, 2, settings) == 0

    folder = settings.checkpoints_dir / RUN
    (folder / "2.1" / "ledger.bin").write_bytes(b"damaged")
    assert await train(settings) == 0
    assert await lineages(bus) == [(1, 0), (2, 1)]
    assert (folder / "1.1.universal" / "manifest.json").is_file()  # for the next start, as long as 1.1 is kept
    published = await versions(bus)
    assert published["v2.1"].chain == published["v2.2"].chain
    by_two, by_one = [await tensors(published[version], tmp_path) for version in ("v2.1", "v2.2")]
    for name, data in by_two.items():
        weights = [torch.frombuffer(bytearray(raw), dtype=torch.float32) for raw in (data, by_one[name])]
        torch.testing.assert_close(*weights, rtol=0.0, atol=1e-6)
    steps = {s["version"]: (s["lr"], s["updates_total"]) for s in await events(bus, "step")}
    assert steps["v2.1"] == steps["v2.2"] == (0.5e-3, 2)


@pytest.mark.usefixtures("one_rank")
async def test_one_rank_takes_over_from_two_that_had_made_no_update_yet(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    config_hash = script.spec.config_hash
    store = CheckpointStore(settings.checkpoints_dir, RUN)
    staging = store.begin(0, 1)  # a run that was paused at once; DeepSpeed's files are of no use to anybody else
    manifest = CheckpointManifest(
        RUN, 0, 1, chain.genesis(config_hash), 1, config_hash, 0, world_size=2, updated_steps=0
    )
    log = trainer_log(bus, RUN)
    await log.append(Lineage(1, "two ranks", 0))
    await log.append(store.commit(staging, manifest, []))

    assert await train(settings) == 0
    assert await lineages(bus) == [(1, 0), (2, 0)]
    published = await versions(bus)
    assert published["v1.2"].chain == chain_by_hand(script, 1)
    assert published["v0.2"].manifest_hash != published["v1.2"].manifest_hash
