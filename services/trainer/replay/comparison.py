"""What a replay made against what the run recorded: chain, metrics and weights, version by version."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.trainer.replay.recording import Recording
from services.trainer.report import StepReport
from sluice.types import PolicyVersion, Version
from sluice.weights.manifest import MANIFEST_FILE, AdaptersEntry, Manifest, adapters_run

TENSOR_TYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Up to where two numbers count as the same."""

    metrics: float
    """|replayed − recorded| / max(1, |recorded|) of the loss and every other metric of a step."""
    weights: float
    """‖replayed − recorded‖ / ‖recorded‖ over all tensors of a version."""


@dataclass(slots=True)
class Row:
    """One policy version: the start of the replay, or what a training step made."""

    version: str
    step: int | None
    """The training step that made it; None: where the replay starts."""
    chain_equal: bool
    hash_equal: bool
    """The replayed version would have had the manifest hash that was recorded: every tensor has the same bytes."""
    weights_distance: float | None = None
    """0 where the hashes are equal; None where they differ and the recorded weights are gone."""
    loss: float | None = None
    recorded_loss: float | None = None
    differences: dict[str, float] = field(default_factory=dict)
    """Of each metric that was recorded, in the unit of `Tolerance.metrics`; empty where no step event is left."""

    @property
    def worst(self) -> tuple[str, float] | None:
        """The metric that differs most."""
        return max(self.differences.items(), key=lambda item: item[1], default=None)

    def agrees(self, tolerance: Tolerance) -> bool:
        """Whether nothing that could be compared is further off than that."""
        worst = self.worst
        near = worst is None or worst[1] <= tolerance.metrics
        return self.chain_equal and near and (self.weights_distance or 0.0) <= tolerance.weights


class Comparison:
    """The witness of a replay: it is told of every version and step, and looks up what was recorded of it.

    Args:
        recorded_folder: where the recorded weights of a version are, or None if they are gone.
    """

    def __init__(self, recording: Recording, recorded_folder: Callable[[Version], Path | None]) -> None:
        self._recording, self._folder_of = recording, recorded_folder
        self.rows: list[Row] = []

    def announce(self, version: PolicyVersion, path: Path, manifest: Manifest, chain: str) -> None:
        """Compare the weights that the replay has just written."""
        recorded = self._recording.version(version.number)
        assert recorded is not None, f"batch {version.number - 1} is replayed, so its version was published"
        step = version.number - 1 if self.rows else None
        row = Row(str(recorded.version), step, chain == recorded.chain, self._as_recorded(path, manifest, recorded))
        row.weights_distance = 0.0 if row.hash_equal else self._distance(path, manifest, recorded)
        self.rows.append(row)

    def report(self, report: StepReport) -> None:
        """Compare what the step measured."""
        row, replayed = self.rows[-1], report.learning()
        recorded = self._recording.steps.get(report.batch.k, {})
        row.loss, row.recorded_loss = replayed["loss"], recorded.get("loss")
        row.differences = differences(replayed, recorded)

    def _as_recorded(self, path: Path, manifest: Manifest, recorded: Version) -> bool:
        """Names and parents of versions tell of restarts, which a replay has none of."""
        parent = self._recording.parent(recorded)
        named = replace(
            manifest,
            version=recorded.version,
            parent=parent.version if parent else None,
            parent_hash=parent.manifest_hash if parent else "",
            adapters=_renamed_adapters(path, manifest, recorded),
        )
        return named.hash == recorded.manifest_hash

    def _distance(self, path: Path, manifest: Manifest, recorded: Version) -> float | None:
        folder = self._folder_of(recorded)
        return None if folder is None else distance(read_tensors(path, manifest), read_tensors(folder, manifest))


def _renamed_adapters(path: Path, manifest: Manifest, recorded: Version) -> AdaptersEntry | None:
    """Adapters are published beside a version under its name, which is therefore in their hash."""
    if manifest.adapters is None:
        return None
    beside = path.parent.with_name(adapters_run(manifest.run_id)) / path.name / MANIFEST_FILE
    named = replace(Manifest.from_json(beside.read_bytes()), version=recorded.version)
    return replace(manifest.adapters, manifest_hash=named.hash)


def differences(replayed: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, float]:
    """Of each metric that both have: |replayed − recorded| / max(1, |recorded|)."""
    shared = {name: (float(replayed[name]), float(recorded[name])) for name in replayed if name in recorded}
    return {name: abs(new - old) / max(1.0, abs(old)) for name, (new, old) in shared.items()}


def read_tensors(folder: Path, manifest: Manifest) -> dict[str, Tensor]:
    """The tensors of a version, in the layout that the manifest gives: equal models have equal layouts."""
    found = {}
    for entry in manifest.tensors:
        with (folder / entry.file).open("rb") as file:
            file.seek(entry.offset)
            data = bytearray(file.read(entry.nbytes))
        found[entry.name] = torch.frombuffer(data, dtype=TENSOR_TYPES[entry.dtype]).double()
    return found


def distance(found: Mapping[str, Tensor], recorded: Mapping[str, Tensor]) -> float:
    """‖found − recorded‖ / ‖recorded‖ over all tensors, in float64."""
    apart = sum(float((found[name] - recorded[name]).square().sum()) for name in recorded)
    size = sum(float(tensor.square().sum()) for tensor in recorded.values())
    return math.sqrt(apart / size) if size else math.sqrt(apart)
