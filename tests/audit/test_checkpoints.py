"""Checkpoint folders on disk, written by the trainer's own store, then forged."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from services.trainer.checkpoint import CheckpointManifest, CheckpointStore
from sluice.audit import AuditReport, Fault, audit
from sluice.transport.nats import Bus
from sluice.types import Checkpoint
from sluice.wire.records import encode_ledger
from tests.audit.world import World, make_spec


class WorldOnDisk(World):
    """A run whose trainer writes real checkpoint folders."""

    root: Path

    def make_checkpoint(self) -> Checkpoint:
        store = CheckpointStore(self.root, self.run_id)
        folder = store.begin(self.steps, self.lineage)
        (folder / "zero").mkdir()
        (folder / "zero" / "rank_0.pt").write_bytes(bytes(range(256)) * 100)
        manifest = CheckpointManifest(
            run_id=self.run_id,
            k=self.steps,
            lineage=self.lineage,
            chain=self.chain[self.steps].hex(),
            ledger_sequence=len(self.ledger),
            config_hash=self.spec.config_hash,
            optimizer_updates=self.steps,
            world_size=1,
        )
        return store.commit(folder, manifest, [(i + 1, encode_ledger(r)) for i, r in enumerate(self.ledger)])


async def audited(bus: Bus, world: World) -> AuditReport:
    await world.write(bus)
    return await audit(bus, world.run_id)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = WorldOnDisk("run-a", make_spec(checkpoint={"interval": 2}), random.Random(1))
    world.root = tmp_path / "checkpoints"
    return world.play()


@pytest.fixture
def folder(world: World) -> Path:
    """The newest checkpoint."""
    return Path([r for r in world.trainer if isinstance(r, Checkpoint)][-1].path)


async def test_whole_checkpoints_are_verified(bus: Bus, world: World) -> None:
    report = await audited(bus, world)
    assert report.findings == ()
    assert (report.checkpoints_verified, report.checkpoints_elsewhere, report.newest_checkpoint) == (2, 0, 4)


async def test_old_checkpoints_may_be_removed_and_folders_may_be_on_another_machine(
    bus: Bus, world: World, folder: Path
) -> None:
    shutil.rmtree(folder.parent / "2.1")
    report = await audited(bus, world)
    assert (report.findings, report.checkpoints_verified, report.checkpoints_elsewhere) == ((), 1, 1)
    shutil.rmtree(folder.parent)
    report = await audit(bus, world.run_id)
    assert (report.findings, report.checkpoints_elsewhere) == ((), 2)


def flip_a_bit(folder: Path) -> None:
    path = folder / "zero" / "rank_0.pt"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


def cut_a_file(folder: Path) -> None:
    path = folder / "zero" / "rank_0.pt"
    path.write_bytes(path.read_bytes()[:-1])


def remove_a_file(folder: Path) -> None:
    (folder / "zero" / "rank_0.pt").unlink()


def add_a_file(folder: Path) -> None:
    (folder / "zero" / "rank_1.pt").write_bytes(b"more")


def forge_the_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"optimizer_updates": 99}))


def damage_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


def swap_in_an_older_checkpoint(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "2.1", folder)


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (flip_a_bit, "zero/rank_0.pt does not have the checksum of the manifest"),
        (cut_a_file, "zero/rank_0.pt has 25599 bytes, the manifest says 25600"),
        (remove_a_file, "zero/rank_0.pt is missing"),
        (add_a_file, "zero/rank_1.pt is not in the manifest"),
        (forge_the_manifest, "manifest.json does not have the checksum of its record"),
        (damage_the_manifest, "manifest.json is no manifest"),
        (swap_in_an_older_checkpoint, "manifest.json says k = 2, the records say 4"),
        (shutil.rmtree, "the newest recorded checkpoint is not there"),
    ],
)
async def test_a_forged_checkpoint_is_found(
    bus: Bus, world: World, folder: Path, forge: Callable[[Path], None], message: str
) -> None:
    forge(folder)
    report = await audited(bus, world)
    assert {f.kind for f in report.findings} == {Fault.CHECKPOINT}
    assert any(message in f.detail and str(folder) in f.detail for f in report.findings)


def move(folder: Path, target: Path) -> Path:
    return folder.rename(target)


async def test_a_checkpoint_under_another_name_is_found(bus: Bus, world: World, folder: Path) -> None:
    at = next(i for i, r in enumerate(world.trainer) if isinstance(r, Checkpoint) and r.k == 4)
    record = world.trainer[at]
    assert isinstance(record, Checkpoint)
    moved = move(folder, folder.parent / "5.1")
    world.trainer[at] = Checkpoint(record.k, record.lineage, str(moved), record.checksum, record.chain)
    report = await audited(bus, world)
    assert ["the folder of checkpoint 4.1 has another name" in f.detail for f in report.findings] == [True]


async def test_a_copy_of_the_ledger_that_is_not_the_ledger_is_found(bus: Bus, world: World) -> None:
    world.ledger.pop(3)
    report = await audited(bus, world)
    details = [f.detail for f in report.findings if f.kind is Fault.CHECKPOINT]
    assert any("ledger.bin has another record 4 than LEDGER" in detail for detail in details)
