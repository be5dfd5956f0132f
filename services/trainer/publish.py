"""A policy version leaves the trainer: gathered a few parameters at a time, written, announced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.trainer.claim import Claim
from services.trainer.policy import DTYPES
from services.trainer.zero import ZeroEngine
from sluice.types import PolicyVersion
from sluice.weights.manifest import Manifest
from sluice.weights.publish import VersionWriter, remove_old

WIRE_DTYPES = {"bfloat16": "BF16", "float32": "F32"}


class Publisher:
    """Writes versions of one run under `root`. Every rank calls `write`; rank 0 alone passes a version."""

    def __init__(self, root: Path, claim: Claim) -> None:
        self._root, self._run_id, self._config_hash = root, claim.run_id, claim.config_hash
        self._dtype, self._keep = claim.spec.model.engine_dtype, claim.spec.weights.keep
        self._parent: Manifest | None = None

    def write(self, engine: ZeroEngine, version: PolicyVersion | None, updates: int) -> tuple[Path, Manifest] | None:
        """Write the weights as `version`; on ranks without one, only take part in the gathering.

        Raises:
            OSError: the disk is full or gone; nothing of the version is left then.
        """
        if version is None:
            for _ in engine.parameters():
                pass
            return None
        writer = VersionWriter(
            self._root,
            self._run_id,
            version,
            parent=self._parent,
            optimizer_updates=updates,
            config_hash=self._config_hash,
        )
        try:
            for block in engine.parameters():
                for name, tensor in block:
                    writer.add(name, WIRE_DTYPES[self._dtype], tuple(tensor.shape), self._bytes(tensor))
            path, manifest = writer.commit()
        except BaseException:
            writer.abort()
            raise
        self._parent = manifest
        remove_old(self._root, self._run_id, self._keep, pinned=())
        return path, manifest

    def _bytes(self, tensor: Tensor) -> memoryview:
        converted = tensor.to(device="cpu", dtype=DTYPES[self._dtype]).contiguous()
        flat: NDArray[np.uint8] = converted.view(-1).view(torch.uint8).numpy()
        return flat.data
