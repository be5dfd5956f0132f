"""The table of JetStream streams, as `sluice.wire.subjects` names them, and how much room each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from sluice.wire import subjects


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Room for each stream, in bytes; a full stream refuses the publisher, which waits and says so."""

    rollouts_bytes: int = 8 << 30
    groups_bytes: int = 1 << 30
    prompts_bytes: int = 1 << 30
    events_bytes: int = 256 << 20
    events_age_seconds: float = 24 * 3600
    evaluation_prompts_bytes: int = 256 << 20
    evaluation_groups_bytes: int = 512 << 20
    evaluation_groups_age_seconds: float = 7 * 24 * 3600
    """They go when their evaluation ends; this takes what a worker stored too late."""
    replicas: int = 1


def stream_table(limits: StreamLimits) -> list[StreamConfig]:
    """All streams of a deployment."""
    common: dict[str, Any] = {
        "storage": StorageType.FILE,
        "discard": DiscardPolicy.NEW,
        "allow_direct": True,
        "num_replicas": limits.replicas,
    }
    return [
        StreamConfig(name=subjects.LEDGER, subjects=["ledger.*"], **common),
        StreamConfig(name=subjects.TRAINER, subjects=["trainer.*"], **common),
        StreamConfig(name=subjects.ARCHIVE, subjects=["archive.*.*.*"], **common),
        StreamConfig(
            name=subjects.PROMPTS,
            subjects=["prompts.*.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            max_bytes=limits.prompts_bytes,
            **common,
        ),
        StreamConfig(name=subjects.ROLLOUTS, subjects=["rollouts.*"], max_bytes=limits.rollouts_bytes, **common),
        StreamConfig(name=subjects.GROUPS, subjects=["groups.*.*"], max_bytes=limits.groups_bytes, **common),
        StreamConfig(
            name=subjects.EVENTS,
            subjects=["events.*.*"],
            max_bytes=limits.events_bytes,
            max_age=limits.events_age_seconds,
            **{**common, "discard": DiscardPolicy.OLD},
        ),
        StreamConfig(name=subjects.EVALUATIONS, subjects=["evaluations.*"], **common),
        StreamConfig(
            name=subjects.EVAL_PROMPTS,
            subjects=["evalprompts.*.*.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            max_bytes=limits.evaluation_prompts_bytes,
            **common,
        ),
        StreamConfig(
            name=subjects.EVAL_GROUPS,
            subjects=["evalgroups.*.*.*"],
            max_bytes=limits.evaluation_groups_bytes,
            max_age=limits.evaluation_groups_age_seconds,
            **common,
        ),
    ]
