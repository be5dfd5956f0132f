"""The few fields of a run's spec that its records must obey, read from the spec's JSON alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from sluice.wire.v1.ledger_pb2 import RunCreated


@dataclass(frozen=True, slots=True)
class Rules:
    config_hash: str
    batch_size: int
    group_size: int
    max_staleness: int
    total_steps: int
    overissue: int
    filtering: bool
    metric: str
    rounds: bool
    gen_batch_size: int
    first_step: int
    """Index of the first batch: of a fork, the training steps that were in the weights when it began."""

    @classmethod
    def of(cls, created: RunCreated) -> Rules:
        """Raises: ValueError, KeyError: the spec is not one."""
        spec = json.loads(created.spec_json)
        batch_size = spec["trainer"]["prompts_per_step"]
        return cls(
            config_hash=created.config_hash,
            batch_size=batch_size,
            group_size=spec["rollout"]["group_size"],
            max_staleness=spec["asynchrony"]["max_staleness"],
            total_steps=spec["trainer"]["total_steps"],
            overissue=spec["asynchrony"]["overissue"],
            filtering=spec["filter"]["enable"],
            metric=spec["filter"]["metric"],
            rounds=spec["filter"]["mode"] == "rounds",
            gen_batch_size=spec["filter"]["gen_batch_size"] or batch_size,
            first_step=created.origin.checkpoint.k,
        )

    def capacity(self, version: int) -> int:
        """Most groups that this run has consumed, kept or in flight while `version` is the newest version number."""
        steps = min(version + self.max_staleness + 1, self.total_steps) - self.first_step
        return steps * self.batch_size + self.overissue


def hash_of_spec(spec_json: str) -> str:
    """What `config_hash` must be."""
    return hashlib.sha256(spec_json.encode()).hexdigest()[:16]
