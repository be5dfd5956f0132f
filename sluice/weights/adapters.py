"""A version's adapters as a folder that peft loads onto the base: `adapter_config.json` and one safetensors file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sluice.errors import ConfigError
from sluice.types import Version
from sluice.weights.export import PROVENANCE_FILE, new_folder
from sluice.weights.manifest import MANIFEST_FILE, AdaptersEntry, Manifest, TensorEntry, adapters_run

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
_ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the head."""


def adapters_of(record: Version, merged: Manifest) -> tuple[Version, AdaptersEntry]:
    """Where the adapters in a version's weights are published, as it would be announced, and what they are.

    Raises:
        ConfigError: it has none.
    """
    entry = merged.adapters
    if entry is None:
        raise ConfigError(
            f"--adapter: {merged.version} of run {merged.run_id} has no adapters; it trains all weights (lora.rank = 0)"
        )
    uri = record.uri
    if urlsplit(uri).scheme == "file":
        folder, _, version = uri.rstrip("/").rpartition("/")
        uri = f"{folder.rpartition('/')[0]}/{adapters_run(merged.run_id)}/{version}"
    return Version(record.version, uri, entry.manifest_hash, chain=""), entry


def export_adapters(version: Path, entry: AdaptersEntry, base: str, out: Path) -> Manifest:
    """Write `out`, complete or not at all.

    Args:
        version: folder of the published adapters, already verified.
        base: what peft loads the base from.
        out: must not exist, or be empty.

    Raises:
        ConfigError: `out` holds files, or the disk does not take it.
    """
    manifest = Manifest.from_json((version / MANIFEST_FILE).read_bytes())
    with new_folder(out) as staging:
        text = json.dumps(_config(entry, base), indent=2, sort_keys=True) + "\n"
        (staging / CONFIG_FILE).write_text(text, encoding="utf-8")
        _join(version, manifest.tensors, staging / WEIGHTS_FILE)
        shutil.copyfile(version / MANIFEST_FILE, staging / PROVENANCE_FILE)
    return manifest


def _config(entry: AdaptersEntry, base: str) -> dict[str, Any]:
    """What differs from peft's defaults, or decides what the adapters compute."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": entry.rank,
        "lora_alpha": entry.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _ALL_LINEAR if entry.target_modules is None else list(entry.target_modules),
    }


def _join(version: Path, tensors: Sequence[TensorEntry], out: Path) -> None:
    """One safetensors file of all shards: peft reads no more than one."""
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        fields[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with out.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors:
            with (version / tensor.file).open("rb") as shard:
                shard.seek(tensor.offset)
                file.write(shard.read(tensor.nbytes))
