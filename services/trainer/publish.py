"""A policy version leaves the trainer: gathered a few parameters at a time, written, announced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.trainer.claim import Claim
from services.trainer.policy import DTYPES
from services.trainer.zero import ZeroEngine
from sluice.types import PolicyVersion
from sluice.weights.manifest import AdaptersEntry, Manifest, adapters_run
from sluice.weights.publish import VersionWriter, list_versions, remove_old

Needed = Callable[[Sequence[PolicyVersion]], Collection[PolicyVersion]]
WIRE_DTYPES = {"bfloat16": "BF16", "float32": "F32"}


class Publisher:
    """Writes versions of one run under `root`. Every rank calls `write`; rank 0 alone passes a version.

    Adapters are merged into the weights, and written by themselves beside them.

    Args:
        needed: those of the versions that are there which stay, however old they are.
    """

    def __init__(self, root: Path, claim: Claim, needed: Needed = lambda _: ()) -> None:
        self._root, self._run_id, self._config_hash = root, claim.run_id, claim.config_hash
        self._needed = needed
        self._dtype, self._keep, self._lora = claim.spec.model.engine_dtype, claim.spec.weights.keep, claim.spec.lora
        self._parent: Manifest | None = None

    def write(self, engine: ZeroEngine, version: PolicyVersion | None, updates: int) -> tuple[Path, Manifest] | None:
        """Write the weights as `version`; on ranks without one, only take part in the gathering.

        Raises:
            OSError: the disk is full or gone; nothing of the version is left then.
        """
        if version is None:
            for _ in itertools.chain(engine.adapters(), engine.parameters()):
                pass
            return None
        adapters = self._write_adapters(engine, version, updates) if self._lora.rank else None
        writer = VersionWriter(
            self._root,
            self._run_id,
            version,
            parent=self._parent,
            optimizer_updates=updates,
            config_hash=self._config_hash,
        )
        path, manifest = _written(writer, engine.parameters(), self._dtype, adapters)
        self._parent = manifest
        needed = self._needed(list_versions(self._root, self._run_id))
        for run_id in (self._run_id, adapters_run(self._run_id)):
            remove_old(self._root, run_id, self._keep, needed)
        return path, manifest

    def _write_adapters(self, engine: ZeroEngine, version: PolicyVersion, updates: int) -> AdaptersEntry:
        """Whole, whatever the trainer's own precision: they are small."""
        run_id = adapters_run(self._run_id)
        writer = VersionWriter(
            self._root,
            run_id,
            version,
            parent=None,
            optimizer_updates=updates,
            config_hash=self._config_hash,
            kind="adapters",
        )
        _, manifest = _written(writer, engine.adapters(), "float32")
        lora = self._lora
        return AdaptersEntry(manifest.hash, lora.rank, lora.alpha, lora.target_modules)


def _written(
    writer: VersionWriter, blocks: Iterator[list[tuple[str, Tensor]]], dtype: str, adapters: AdaptersEntry | None = None
) -> tuple[Path, Manifest]:
    try:
        for block in blocks:
            for name, tensor in block:
                writer.add(name, WIRE_DTYPES[dtype], tuple(tensor.shape), _bytes(tensor, dtype))
        return writer.commit(adapters)
    except BaseException:
        writer.abort()
        raise


def _bytes(tensor: Tensor, dtype: str) -> memoryview:
    converted = tensor.to(device="cpu", dtype=DTYPES[dtype]).contiguous()
    flat: NDArray[np.uint8] = converted.view(-1).view(torch.uint8).numpy()
    return flat.data
