"""What the REST API shows of runs: the coordinator builds these, the client reads them back.

They are for people and programs outside; no service takes its state from them. Events may lose messages and a newer
service may add fields, so readers ignore fields they do not know and every measured field may be absent.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sluice.types import RunState


class View(BaseModel):
    """Base of all views."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


class RunAction(StrEnum):
    """What a person can ask of a run."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


class WaitView(View):
    """A named wait: nothing in Sluice waits without one."""

    name: str = Field(description="The wait, as logs and metrics name it.")
    waits_for: str = Field(description="Who or what ends it.")
    seconds: float = Field(description="How long it has lasted.")
    deadline_seconds: float | None = Field(None, description="When it becomes an error.")


class OriginView(View):
    """The checkpoint of another run that a run started from."""

    run: str
    step: int = Field(
        description="Training steps that were in its weights: the first batch of this run has that number."
    )
    checkpoint: str = Field(description="Its folder.")
    draws_again: int = Field(0, description="Draws of the data order that the other run had issued and not settled.")
    next_draw: int = Field(0, description="Where the data order goes on after those; 0: at its beginning.")


class DeletionView(View):
    """A run that was deleted."""

    id: str
    keep_checkpoints: bool = Field(description="Its checkpoints stay where they are.")


class CountsView(View):
    """issued = trained + Σ dropped + live; `kept` counts groups that have waited for, or gone into, a batch."""

    issued: int = 0
    trained: int = 0
    live: int = 0
    in_flight: int = Field(0, description="Live groups that a worker still has to finish.")
    kept_waiting: int = Field(0, description="Kept groups that wait for their batch.")
    scored: int = 0
    kept: int = 0
    dropped: dict[str, int] = Field(default_factory=dict, description="Groups that never train, by reason.")

    @property
    def keep_rate(self) -> float | None:
        """Kept groups of scored groups; None before the first."""
        return self.kept / self.scored if self.scored else None


class BottleneckView(View):
    """Who waits for whom, as measured over the last training steps, and what would help."""

    part: str = Field(
        description="What holds the run back: rollouts, trainer, reward, weight_sync, filter, staleness, checkpoint, "
        "or balanced."
    )
    text: str = Field("", description="The verdict in words.")
    knob: str = Field("", description="The settings that would help; empty when balanced.")
    shares: dict[str, float] = Field(
        default_factory=dict, description="What the verdict is made from, each between 0 and 1."
    )
    window_seconds: float = Field(0.0, description="How much of the run's time it is made from.")


class RunView(View):
    """A run as it stands now."""

    id: str
    name: str
    state: RunState
    reason: str = Field("", description="Why it is in this state, in words.")
    problem: str = Field(
        "", description="Why this coordinator cannot read all of its records: it is shown as it stood before them."
    )
    config_hash: str
    created_at: datetime
    first_issue_at: datetime | None = Field(None, description="Server time of the first ISSUE record.")
    finished_at: datetime | None = None
    training_steps: int = Field(0, description="Training steps whose policy version is published.")
    batches: int = Field(0, description="Batches emitted; of a fork, with those that its checkpoint had.")
    total_steps: int
    policy_version: str | None = Field(None, description="Newest published policy version, e.g. v12.1.")
    forked_from: OriginView | None = Field(None, description="Where it started, if not from its model.")
    forks: tuple[str, ...] = Field((), description="Runs that started from a checkpoint of this one; absent in lists.")
    counts: CountsView = CountsView()
    waits: tuple[WaitView, ...] = Field((), description="Who waits for whom, the longest first.")
    bottleneck: BottleneckView | None = Field(
        None, description="What holds the run back; absent until enough is measured, and while it does not run."
    )
    spec: dict[str, Any] | None = Field(None, description="The whole run spec; absent in lists.")
    data: dict[str, Any] | None = Field(
        None, description="What it trains on: fingerprint, counts, and each file with its SHA-256; absent in lists."
    )


class BatchView(View):
    """The `batch` event: what was sampled since the last batch, dropped groups included."""

    step: int
    reward_mean: float | None = None
    acc_mean: float | None = None
    keep_rate: float | None = None
    sampled_groups: int = 0
    dropped: dict[str, int] = Field(default_factory=dict)
    response_length_mean: float | None = None
    truncated_share: float | None = None
    tokens: int = 0
    staleness: dict[str, int] = Field(default_factory=dict, description="Groups of the batch by staleness.")
    version: int | str | None = None
    in_flight: int = 0
    kept_waiting: int = 0
    elapsed_seconds: float | None = Field(None, description="Since the first issued prompt.")
    fill_seconds: float | None = Field(None, description="Since the batch before, or the first issued prompt.")
    tokens_per_second: float | None = None


class TrainingView(View):
    """The `step` event: one finished training step, as the trainer measured it. docs/metrics.md says what each is."""

    step: int
    version: str | None = None
    updates: int | None = Field(None, description="Optimizer updates of this step; 0 where no token was trainable.")
    updates_total: int | None = Field(None, description="Optimizer updates since the run began.")
    gradient_overflows: int | None = Field(
        None,
        description="Gradients thrown away and made again, because they overflowed under the loss scale of float16.",
    )
    lr: float | None = None
    loss: float | None = None
    policy_loss: float | None = None
    kl_loss: float | None = None
    grad_norm: float | None = None
    grad_norm_max: float | None = None
    grad_clipped_fraction: float | None = None
    entropy: float | None = Field(None, description="Mean over trained tokens, nats.")
    clip_fraction_high: float | None = None
    clip_fraction_low: float | None = None
    dual_clip_fraction: float | None = None
    approx_kl: float | None = None
    approx_kl_k3: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    mean_token_probability: float | None = None

    logprob_gap_mean: float | None = Field(None, description="Mean |trainer − behaviour| log-prob, nats.")
    logprob_gap_max: float | None = None
    prob_gap_mean: float | None = None
    prob_gap_max: float | None = None
    prob_correlation: float | None = None
    behaviour_kl: float | None = None
    behaviour_kl_k3: float | None = None
    trainer_perplexity: float | None = None
    behaviour_perplexity: float | None = None
    log_perplexity_gap: float | None = None
    log_perplexity_gap_abs: float | None = None
    chi2_token: float | None = None
    chi2_sequence: float | None = None
    importance_weight_mean: float | None = None
    importance_weight_std: float | None = None
    importance_weight_min: float | None = None
    importance_weight_max: float | None = None
    importance_weight_fraction_high: float | None = None
    importance_weight_fraction_low: float | None = None
    effective_sample_size: float | None = None
    rejected_token_fraction: float | None = None
    rejected_sequence_fraction: float | None = None

    reward_mean_kept: float | None = None
    score_mean_kept: float | None = None
    acc_mean_kept: float | None = None
    advantage_min: float | None = None
    advantage_max: float | None = None
    overlong_penalty_mean: float | None = None
    overlong_share: float | None = None
    overlong_filtered: int | None = None
    prompt_length_mean: float | None = None
    response_length_mean: float | None = None
    response_length_min: int | None = None
    response_length_max: int | None = None
    truncated_share: float | None = None
    staleness_max: int | None = None
    staleness_mean: float | None = None
    groups: int | None = None
    groups_issued: int | None = None

    prompt_tokens: int | None = None
    response_tokens: int | None = None
    computed_tokens: int | None = None
    trained_tokens: int | None = None
    trained_sequences: int | None = None
    tokens_per_second: float | None = None
    seconds: dict[str, float] = Field(
        default_factory=dict, description="wait, fetch, train, publish, checkpoint, total."
    )


class StepView(View):
    """Training step k: its batch, and its training once that is done."""

    step: int
    batch: BatchView
    training: TrainingView | None = None


class VersionView(View):
    """A published policy version."""

    version: str
    uri: str
    manifest_hash: str
    chain: str = Field(description="Hex of h(number), the hash chain over all trained batches.")
    published_at: datetime = Field(description="Server time of its VERSION record.")


class CheckpointView(View):
    """Batches below k are in these weights."""

    k: int
    lineage: int
    path: str
    checksum: str
    chain: str
    stored_at: datetime


class WorkerView(View):
    """A rollout worker that is there now."""

    name: str
    run: str | None = None
    engine: str | None = None
    version: str | None = None
    evaluating: str | None = Field(
        None, description="The policy version that it is reserved to evaluate; then it makes no training rollouts."
    )
    in_flight: int = 0
    slots: int = Field(0, description="Most groups that it takes on at once.")
    seconds: dict[str, float] = Field(
        default_factory=dict,
        description="Since it joined the run, by what it did: generate, weight_sync, evaluate, reward, store, idle.",
    )
    tokens_per_second: float | None = None
    waits: dict[str, float] = Field(
        default_factory=dict, description="Seconds that its longest wait of each name has lasted; docs/operations.md."
    )


class EventView(View):
    """One event of a run; `id` is the value for `Last-Event-ID`."""

    id: int
    kind: str
    time: datetime
    fields: dict[str, Any] = Field(default_factory=dict)


class Problem(BaseModel):
    """RFC 9457 problem document: what is wrong, where, and which knob changes it."""

    model_config = ConfigDict(frozen=True)

    type: str = Field("about:blank", description="A URI reference that names the kind of problem.")
    title: str
    status: int
    detail: str = Field(description="One line for a person.")
    instance: str | None = Field(None, description="The path that was asked for.")
    field: str | None = Field(None, description="The field that is wrong.")
    value: Any = Field(None, description="Its value.")
    limit: Any = Field(None, description="What it may be.")
    knob: str | None = Field(None, description="The setting that changes the limit.")
