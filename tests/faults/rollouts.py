"""What a rollout worker stores for a prompt, by hand: real rollouts that a real trainer takes."""

from __future__ import annotations

import random
from dataclasses import replace

from sluice.packed import TokenIds
from sluice.transport.nats import Bus
from sluice.transport.queues import store_rollouts
from sluice.types import Group, GroupStatus, PolicyVersion, Prompt, Rollout, VersionSpan
from tests.trainer.script import make_rollouts, summarise


def rollouts_of(prompt: Prompt, version: PolicyVersion, attempt: str) -> list[Rollout]:
    """A group of random answers, sampled from `version`; another attempt has other tokens."""
    return [
        replace(
            rollout,
            run_id=prompt.run_id,
            attempt=attempt,
            prompt_token_ids=TokenIds(prompt.token_ids),
            spans=(VersionSpan(version, 0, len(rollout.token_ids)),),
        )
        for rollout in make_rollouts(prompt.n, random.Random(f"{prompt.n}/{attempt}"))[: prompt.group_size]
    ]


async def store_attempt(bus: Bus, prompt: Prompt, version: PolicyVersion, attempt: str = "first") -> Group:
    """Store the rollouts of an attempt; the group that would commit it. Right and wrong in turn, so it is kept."""
    rollouts = rollouts_of(prompt, version, attempt)
    summaries = tuple(
        replace(summarise(rollout, float(rollout.i % 2), at), oldest_version=version, newest_version=version)
        for rollout, at in zip(rollouts, await store_rollouts(bus, rollouts), strict=True)
    )
    scored = GroupStatus.SCORED
    return Group(prompt.run_id, prompt.n, attempt, scored, summaries, "w", "e", prompt.min_version, 0.1, 0.1)
