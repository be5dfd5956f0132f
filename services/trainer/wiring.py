"""A rank's trainer, put together: the policy loaded and sharded, at its checkpoint if it has one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from services.trainer.adapters import check_trained_form
from services.trainer.bus import NatsThread
from services.trainer.claim import Claim
from services.trainer.fetching import Fetcher
from services.trainer.policy import load_policy, packing_limits
from services.trainer.publish import Publisher
from services.trainer.ranks import Ranks
from services.trainer.reference import reference_of_run
from services.trainer.trainer import Saver, Trainer, Witness
from services.trainer.zero import ZeroEngine
from sluice.transport.nats import Bus


@dataclass(frozen=True, slots=True)
class Parts:
    """What a rank has before it has anything to train."""

    nats: NatsThread
    bus: Bus
    ranks: Ranks
    device: torch.device


def make_trainer(
    parts: Parts, claim: Claim, weights_dir: Path, witness: Witness | None, saver: Saver | None
) -> Trainer:
    """Load what the claim names. `witness` and `saver` are rank 0's, and None elsewhere.

    Raises:
        ConfigError: the model cannot be loaded or trained, or the checkpoint holds something else than this run trains.
    """
    spec, restored = claim.spec, claim.restored
    if restored is not None:
        check_trained_form(restored.manifest.lora, spec, restored.record.path)
    parts.ranks.divide(spec.trainer.sequence_parallel)
    policy = load_policy(spec, parts.ranks.sequence)
    limits = packing_limits(policy, spec)
    engine = ZeroEngine(policy, spec, parts.device, universal=restored is not None and bool(restored.universal))
    if restored is not None and not restored.untouched:
        engine.load(restored.folder)
    return Trainer(
        claim=claim,
        ranks=parts.ranks,
        engine=engine,
        reference=reference_of_run(spec, engine, parts.ranks.sequence),
        fetcher=Fetcher(parts.nats, parts.bus, parts.ranks, spec, limits),
        publisher=Publisher(weights_dir, claim, saver.needed) if saver else Publisher(weights_dir, claim),
        witness=witness,
        saver=saver,
    )
