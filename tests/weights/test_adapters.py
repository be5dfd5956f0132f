"""Adapters beside the weights that they are merged into: found by the manifest, over either transport, and verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from sluice.errors import ConfigError, TransientError, WeightError
from sluice.types import PolicyVersion
from sluice.weights.adapters import adapters_of, export_adapters
from sluice.weights.fetch import fetch_manifest, fetch_version
from sluice.weights.manifest import AdaptersEntry, Manifest, adapters_run
from sluice.weights.publish import VersionWriter
from tests.weights.conftest import Publish, Serve, announce

VERSION = PolicyVersion(3, 1)
MATRICES = {
    "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": (2, 8),
    "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight": (4, 2),
}


def publish_adapted(root: Path) -> tuple[Path, Manifest]:
    """A version with adapters in it, both in a shard a tensor."""
    writers = [
        VersionWriter(
            root, run, VERSION, parent=None, optimizer_updates=3, config_hash="c0ffee", kind=kind, shard_bytes=1
        )
        for run, kind in ((adapters_run("run-a"), "adapters"), ("run-a", "full"))
    ]
    for fill, (name, shape) in enumerate(MATRICES.items(), start=1):
        writers[0].add(name, "F32", shape, bytes([fill]) * 64 if shape == (2, 8) else bytes([fill]) * 32)
    _, adapters = writers[0].commit()
    writers[1].add("model.layers.0.mlp.up_proj.weight", "F32", (4, 8), bytes(128))
    return writers[1].commit(AdaptersEntry(adapters.hash, rank=2, alpha=4, target_modules=("up_proj",)))


@pytest.mark.parametrize("transport", ["file", "grpc"])
async def test_adapters_are_found_from_the_merged_version_and_peft_finds_all_it_needs_in_one_folder(
    root: Path, serve: Serve, tmp_path: Path, transport: str
) -> None:
    folder, manifest = publish_adapted(root)
    uri = folder.as_uri() if transport == "file" else f"grpc://{(await serve(root)).address}"
    record = announce(manifest, uri)
    adapters, entry = adapters_of(record, await fetch_manifest(record, 10))
    found, of_adapters = await fetch_version(adapters, tmp_path / "cache", 10)
    assert (of_adapters.kind, manifest.kind) == ("adapters", "full")
    export_adapters(found, entry, "org/base", tmp_path / "out")
    loaded = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {name: tensor.shape for name, tensor in loaded.items()} == MATRICES
    assert [set(tensor.tobytes()) for _, tensor in sorted(loaded.items())] == [{1}, {2}]
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 4, ["up_proj"])
    assert (config["base_model_name_or_path"], config["lora_dropout"]) == ("org/base", 0.0)


async def test_damaged_adapters_are_not_taken_for_those_that_the_version_names(root: Path, tmp_path: Path) -> None:
    folder, manifest = publish_adapted(root)
    adapters, _ = adapters_of(announce(manifest, folder.as_uri()), manifest)
    shard = root / adapters_run("run-a") / str(VERSION) / "model-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    with pytest.raises(WeightError, match="has checksum"):
        await fetch_version(adapters, tmp_path, 10)


async def test_a_manifest_that_cannot_be_had_says_from_where(root: Path, publish: Publish) -> None:
    folder, manifest = publish(VERSION)
    with pytest.raises(TransientError, match="cannot be read at file:"):
        await fetch_manifest(announce(manifest, (folder / "gone").as_uri()), 10)
    with pytest.raises(TransientError, match="UNAVAILABLE"):
        await fetch_manifest(announce(manifest, "grpc://127.0.0.1:1"), 10)


def test_a_version_without_adapters_says_so_and_has_the_manifest_that_it_always_had(publish: Publish) -> None:
    folder, manifest = publish(VERSION)
    assert b"adapters" not in manifest.to_json()
    with pytest.raises(ConfigError, match=r"--adapter: v3\.1 of run run-a has no adapters; it trains all weights"):
        adapters_of(announce(manifest, folder.as_uri()), manifest)
    assert Manifest.from_json(manifest.to_json()) == manifest
