"""What the REST API shows of groups and their rollouts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice.views import View


class SpanView(View):
    """Response tokens [start, end) were sampled from this policy version."""

    version: str
    start: int
    end: int


class RolloutView(View):
    """One rollout of a group; reward = score + shaping."""

    verdict: str
    acc: float | None = None
    score: float | None = None
    shaping: float = 0.0
    length: int
    finish_reason: str
    oldest_version: str
    newest_version: str
    spans: tuple[SpanView, ...] = Field((), description="Which tokens each version sampled.")
    content_hash: str = ""
    sequences: tuple[int, ...] = ()
    text: str | None = Field(
        None, description="The response; null once a checkpoint has purged its rollout, or the data set is gone."
    )


class GroupView(View):
    """Group n and what became of it."""

    n: int
    state: Literal["in_flight", "kept", "trained", "dropped"]
    reason: str | None = Field(None, description="Why it was dropped.")
    batch: int | None = Field(None, description="The training step that consumed it.")
    version: int = Field(description="Policy version number at issue.")
    acc_mean: float | None = None
    reward_mean: float | None = None
    length_mean: float | None = None


class GroupDetailView(GroupView):
    """Group n with its provenance."""

    update: int | None = Field(None, description="Which optimizer update of one pass over its batch had it, from 0.")
    seed: int | None = Field(None, description="Seed of its sampling.")
    draw: int | None = Field(None, description="Which draw of the data order it took.")
    index: int | None = Field(None, description="Row of the data set; absent, as its texts are, once that is gone.")
    epoch: int | None = None
    prompt: str | None = None
    ground_truth: str | None = None
    data_source: str | None = None
    extra_info: str | None = Field(None, description="JSON object that the verifier was given.")
    attempt: str | None = None
    worker: str | None = None
    engine: str | None = None
    generate_seconds: float | None = None
    reward_seconds: float | None = None
    sample_text: str | None = Field(None, description="Beginning of rollout 0's response, which stays.")
    error: str = ""
    rollouts: tuple[RolloutView, ...] = ()
