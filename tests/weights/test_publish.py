"""What the trainer can rely on when it publishes, and what readers find afterwards."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from sluice.errors import WeightError
from sluice.types import PolicyVersion
from sluice.weights.fetch import fetch_version
from sluice.weights.manifest import HEADER_BYTES, MANIFEST_FILE, Manifest
from sluice.weights.publish import VersionWriter, list_versions, remove_old
from tests.weights.conftest import TENSORS, Publish, announce

V3 = PolicyVersion(3, 1)


def writer_at(root: Path, version: PolicyVersion = V3) -> VersionWriter:
    return VersionWriter(root, "run-a", version, parent=None, optimizer_updates=0, config_hash="c")


def test_the_safetensors_library_reads_every_tensor_of_every_shard(publish: Publish) -> None:
    folder, manifest = publish(V3)

    assert len(manifest.files) > 1
    for file, entries in manifest.files.items():
        with safe_open(folder / file, framework="numpy") as shard:
            assert set(shard.keys()) == {entry.name for entry in entries}
            for entry in entries:
                part = shard.get_slice(entry.name)
                assert (part.get_dtype(), tuple(part.get_shape())) == (entry.dtype, entry.shape)
    up = "model.layers.0.mlp.up_proj.weight"
    file = next(entry.file for entry in manifest.tensors if entry.name == up)
    with safe_open(folder / file, framework="numpy") as shard:
        assert shard.get_tensor(up).tobytes() == TENSORS[up][2]


def test_transformers_loads_a_published_version_as_it_loads_any_checkpoint(publish: Publish, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    model = LlamaForCausalLM(config)
    tensors = {n: ("F32", tuple(p.shape), p.detach().numpy().tobytes()) for n, p in model.state_dict().items()}
    folder, manifest = publish(V3, tensors)
    config.save_pretrained(folder)

    loaded = LlamaForCausalLM.from_pretrained(folder).state_dict()

    assert len(manifest.files) > 1
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())


def test_nothing_is_visible_before_commit_and_nothing_is_left_after_abort(root: Path) -> None:
    writer = writer_at(root)
    writer.add("a", "F32", (2,), b"12345678")
    assert list_versions(root, "run-a") == []
    assert not (root / "run-a" / "v3.1").exists()

    writer.abort()

    assert list((root / "run-a").iterdir()) == []


def test_a_version_that_was_published_never_changes(root: Path, publish: Publish) -> None:
    open_writer = writer_at(root)
    open_writer.add("a", "F32", (1,), b"late")
    folder, manifest = publish(V3)

    with pytest.raises(WeightError, match=r"v3\.1 of run run-a is published already"):
        publish(V3)
    with pytest.raises(WeightError, match=r"cannot publish v3\.1"):
        open_writer.commit()
    open_writer.abort()

    assert Manifest.from_json((folder / MANIFEST_FILE).read_bytes()) == manifest


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "data", "says"),
    [
        ("b", "F32", (3,), b"1234", "needs 12 bytes, got 4"),
        ("b", "F64", (1,), b"12345678", "dtype 'F64' is not published"),
        ("a", "F32", (1,), b"1234", "'a' was added twice"),
    ],
)
def test_a_tensor_that_does_not_fit_its_description_is_refused(
    root: Path, name: str, dtype: str, shape: tuple[int, ...], data: bytes, says: str
) -> None:
    writer = writer_at(root)
    writer.add("a", "F32", (1,), b"1234")
    with pytest.raises(WeightError, match=says):
        writer.add(name, dtype, shape, data)
    writer.abort()


def test_the_manifest_names_its_parent_by_version_and_hash(publish: Publish) -> None:
    _, parent = publish(V3)
    _, child = publish(PolicyVersion(4, 1), parent=parent)

    assert (child.parent, child.parent_hash) == (V3, parent.hash)
    assert (parent.parent, parent.parent_hash) == (None, "")
    assert child.optimizer_updates == 7


def test_a_model_with_thousands_of_tensors_goes_into_several_shards_whose_headers_fit(root: Path) -> None:
    writer = writer_at(root)
    for i in range(1500):
        writer.add(f"model.layers.{i}.self_attn.q_proj.weight", "BF16", (1, 1), i.to_bytes(2, "little"))
    folder, manifest = writer.commit()

    assert 1 < len(manifest.files) < 10
    for file, entries in manifest.files.items():
        assert (folder / file).stat().st_size == HEADER_BYTES + 2 * len(entries)
        with safe_open(folder / file, framework="numpy") as shard:
            assert len(shard.keys()) == len(entries)


def test_collection_keeps_the_newest_and_never_removes_a_pinned_version(root: Path, publish: Publish) -> None:
    versions = [PolicyVersion(k, 1) for k in range(5)] + [PolicyVersion(3, 2), PolicyVersion(10, 2)]
    for version in versions:
        publish(version)

    removed = remove_old(root, "run-a", keep=2, pinned=[PolicyVersion(1, 1), PolicyVersion(77, 1)])

    assert removed == [PolicyVersion(0, 1), PolicyVersion(2, 1), PolicyVersion(3, 1), PolicyVersion(3, 2)]
    assert list_versions(root, "run-a") == [PolicyVersion(1, 1), PolicyVersion(4, 1), PolicyVersion(10, 2)]
    assert sorted(path.name for path in (root / "run-a").iterdir()) == ["v1.1", "v10.2", "v4.1"]


def test_collection_takes_what_dead_writers_left_but_not_what_is_being_written(root: Path, publish: Publish) -> None:
    dead, alive = writer_at(root, PolicyVersion(2, 1)), writer_at(root, PolicyVersion(9, 1))
    publish(V3)

    remove_old(root, "run-a", keep=2, pinned=[])

    alive.add("a", "F32", (1,), b"1234")
    alive.commit()
    assert sorted(path.name for path in (root / "run-a").iterdir()) == ["v3.1", "v9.1"]
    dead.abort()


def test_publishing_a_quarter_of_a_gigabyte_takes_about_a_second(root: Path) -> None:
    data = np.zeros(1 << 20, dtype=np.uint16)
    writer = writer_at(root)
    started = time.perf_counter()
    for i in range(128):
        writer.add(f"t{i}", "BF16", data.shape, data.data)
    _, manifest = writer.commit()

    assert manifest.nbytes == 256 << 20
    assert time.perf_counter() - started < 10  # about 0.5 s on an idle machine; the bound only catches a wrong order


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=40)
tensor = st.tuples(st.sampled_from(["BF16", "F32"]), st.lists(st.integers(0, 5), max_size=3).map(tuple))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=st.dictionaries(names, tensor, max_size=12), shard_bytes=st.integers(1, 400), data=st.data())
async def test_whatever_is_published_is_read_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, tuple[str, tuple[int, ...]]],
    shard_bytes: int,
    data: st.DataObject,
) -> None:
    root = tmp_path_factory.mktemp("weights")
    written = {}
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=int)) * {"BF16": 2, "F32": 4}[dtype]
        written[name] = data.draw(st.binary(min_size=size, max_size=size))
    writer = VersionWriter(root, "r", V3, parent=None, optimizer_updates=0, config_hash="c", shard_bytes=shard_bytes)
    for name, (dtype, shape) in tensors.items():
        writer.add(name, dtype, shape, written[name])
    folder, manifest = writer.commit()

    found, read = await fetch_version(announce(manifest, folder.as_uri()), root / "cache", 10)

    assert (found, read) == (folder, manifest)
    assert Manifest.from_json(manifest.to_json()) == manifest
    for entry in read.tensors:
        raw = (found / entry.file).read_bytes()
        assert raw[entry.offset : entry.offset + entry.nbytes] == written[entry.name]
