"""A published version of the tiny model, for whoever evaluates one."""

from __future__ import annotations

import json
from pathlib import Path

from sluice.types import PolicyVersion
from sluice.weights.publish import VersionWriter


def tensors(file: Path) -> dict[str, tuple[list[int], bytes]]:
    """Shape and bytes of each tensor of a safetensors file; offsets count from the end of the header."""
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    return {
        name: (entry["shape"], raw[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]])
        for name, entry in header.items()
    }


def publish(model: Path, root: Path, changed: bool = False) -> Path:
    """The model's weights as v3.1; `changed`: all bytes of the first tensor zero."""
    writer = VersionWriter(root, "run-a", PolicyVersion(3, 1), parent=None, optimizer_updates=3, config_hash="c0ffee")
    for number, (name, (shape, data)) in enumerate(tensors(model / "model.safetensors").items()):
        writer.add(name, "F32", shape, bytes(len(data)) if changed and not number else data)
    return writer.commit()[0]
