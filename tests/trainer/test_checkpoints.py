"""Which checkpoints stay on disk."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.checkpoint import CheckpointManifest, CheckpointStore, to_keep, verify
from sluice.config import CheckpointConfig
from sluice.types import Checkpoint
from tests.trainer.script import RUN


def seal(store: CheckpointStore, k: int, lineage: int = 1) -> Checkpoint:
    folder = store.begin(k, lineage)
    (folder / "shard").write_bytes(bytes(k))
    return store.commit(folder, CheckpointManifest(RUN, k, lineage, "", 9, "", k, world_size=1), [])


def test_every_mth_step_stays_beside_the_newest_and_everything_else_goes(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, RUN)
    rule = CheckpointConfig(interval=2, keep=2, keep_every=6)
    kept: list[Checkpoint] = []
    for k in range(2, 18, 2):
        kept = store.prune([*kept, seal(store, k)], rule)
    assert [record.k for record in kept] == [6, 12, 14, 16]
    assert {folder.name for folder in (tmp_path / RUN).iterdir()} == {"6.1", "12.1", "14.1", "16.1"}
    assert [verify(record).k for record in kept] == [6, 12, 14, 16]


def test_a_step_that_was_replayed_is_kept_in_its_newest_lineage(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, RUN)
    records = [seal(store, 2), seal(store, 4), seal(store, 4, lineage=2), seal(store, 6, lineage=2)]
    records += [seal(store, 8, lineage=2)]
    assert [(r.k, r.lineage) for r in store.prune(records, CheckpointConfig(interval=2, keep_every=4))] == [
        (4, 2),
        (6, 2),
        (8, 2),
    ]


def test_a_universal_form_goes_with_its_checkpoint_and_what_nobody_recorded_goes_too(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, RUN)
    records = [seal(store, k) for k in (1, 2, 3)]
    for record in records[:2]:
        Path(f"{record.path}.universal").mkdir()
    seal(store, 3, lineage=2)
    store.prune(records, CheckpointConfig(interval=1))
    assert {folder.name for folder in (tmp_path / RUN).iterdir()} == {"2.1", "2.1.universal", "3.1"}


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), unique=True, max_size=20),
    st.integers(2, 5),
    st.none() | st.integers(1, 10),
)
def test_the_newest_checkpoints_are_kept_whatever_the_rule(
    found: list[tuple[int, int]], keep: int, every: int | None
) -> None:
    records = [Checkpoint(k, lineage, f"{k}.{lineage}", "", "") for k, lineage in found]
    kept = to_keep(records, CheckpointConfig(interval=1, keep=keep, keep_every=every))
    assert kept[-keep:] == records[-keep:]
    multiples = [r.k for r in records if every and r.k % every == 0]
    assert {r.k for r in kept} >= set(multiples)
    assert len(kept) <= keep + len(set(multiples))
