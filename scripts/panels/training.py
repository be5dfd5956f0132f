"""Dashboard "Training": does the run learn, is the optimization healthy, and where does a step's time go."""

from __future__ import annotations

from panels.bottleneck import WHO_WAITS_FOR_WHOM
from panels.panel import WINDOW, Kind, Page, Panel, Query, Section, rate, runs, share, total


def of_last_step(name: str, legend: str) -> Query:
    """A gauge of the trainer."""
    return Query(runs(f"sluice_trainer_{name}"), f"{legend} · {{{{run}}}}")


def of_last_batch(name: str, legend: str) -> Query:
    """A gauge of the coordinator, over everything that was sampled, dropped groups included."""
    return Query(runs(f"sluice_{name}"), f"{legend} · {{{{run}}}}")


PROGRESS = Section(
    "Progress",
    (
        Panel(
            "State",
            "State of each chosen run.",
            (Query(f"max by (namespace, run, state) ({runs('sluice_run_state')}) == 1", "{{state}} · {{run}}"),),
            Kind.NAMES,
            height=4,
        ),
        Panel(
            "Policy version",
            "Newest published policy version: so many batches are trained.",
            (Query(f"max by (namespace, run) ({runs('sluice_published_policy_version')})", "{{run}}"),),
            Kind.NUMBERS,
            width=4,
            height=4,
        ),
        Panel(
            "Training steps an hour",
            "Batches emitted, scaled to an hour.",
            (Query(f"3600 * {total(rate('sluice_batches_total', window=WINDOW))}", "{{run}}"),),
            Kind.NUMBERS,
            width=4,
            height=4,
        ),
        Panel(
            "Trained tokens a second",
            "Response tokens that the trainer consumed.",
            (Query(total(rate("sluice_trainer_tokens_total", 'kind="response"', window=WINDOW)), "{{run}}"),),
            Kind.NUMBERS,
            width=4,
            height=4,
        ),
        Panel(
            "Staleness, mean",
            "Of the rollouts of the last training step; the bound is `asynchrony.max_staleness`.",
            (Query(runs("sluice_trainer_staleness_mean"), "{{run}}"),),
            Kind.NUMBERS,
            width=4,
            height=4,
        ),
    ),
)

LEARNING = Section(
    "Does it learn",
    (
        Panel(
            "Reward",
            "Mean reward. All: every sampled group, the true learning curve. Kept: what the trainer saw; dynamic "
            "sampling holds it near the middle, so it says little about progress.",
            (of_last_batch("reward_mean", "all"), of_last_step("reward_mean_kept", "kept")),
        ),
        Panel(
            "Accuracy",
            "Mean accuracy, before shaping: over every sampled group, and over the kept ones.",
            (of_last_batch("acc_mean", "all"), of_last_step("acc_mean_kept", "kept")),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Evaluation",
            "Newest results on the run's evaluation sets: avg@k, pass@k, cons@k, best@k for the k that is all "
            "responses to a problem. A point is shown until the next one; their 95 % intervals are in the API.",
            (Query(runs("sluice_evaluation_score"), "{{set}} {{measure}} · {{run}}"),),
        ),
    ),
)

POLICY = Section(
    "Policy",
    (
        Panel(
            "Entropy",
            "Mean token entropy in nats. A steady fall to 0 is collapse: raise `algorithm.clip_ratio_high`. A steady "
            "rise with falling reward is drift.",
            (of_last_step("entropy", "entropy"),),
            width=6,
        ),
        Panel(
            "Mean token probability",
            "Probability that the policy gave to the tokens it sampled, all and trained ones; it mirrors the entropy.",
            (
                of_last_step("mean_token_probability", "trained"),
                Query(
                    share(
                        total(rate("sluice_rollout_token_probability_total")),
                        total(rate("sluice_rollout_tokens_total")),
                    ),
                    "sampled · {{run}}",
                ),
            ),
            width=6,
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Response length",
            "Tokens of a response: mean over every sampled group, mean and maximum over the kept ones.",
            (
                of_last_batch("response_length_tokens", "all, mean"),
                of_last_step("response_length_mean", "kept, mean"),
                of_last_step("response_length_max", "kept, maximum"),
            ),
            width=6,
        ),
        Panel(
            "Truncated responses",
            "Share of responses cut at `rollout.max_response_length`. When it grows with the length, raise the limit "
            "or the overlong punishment.",
            (of_last_batch("truncated_share", "all"), of_last_step("truncated_share", "kept")),
            unit="percentunit",
            width=6,
        ),
    ),
)

OPTIMIZATION = Section(
    "Optimization",
    (
        Panel(
            "Clip fractions",
            "Share of tokens clipped above, below, and by the dual clip. Above some per cent the updates are too large "
            "for the data: lower `optim.lr` or the staleness.",
            (
                of_last_step("clip_fraction_high", "high"),
                of_last_step("clip_fraction_low", "low"),
                of_last_step("dual_clip_fraction", "dual"),
            ),
            unit="percentunit",
            width=6,
        ),
        Panel(
            "KL",
            "How far one training step moves from the proximal policy, in nats: mean log-ratio, and its k3 estimate, "
            "which is never negative. To the reference model: 0 without one.",
            (
                of_last_step("approx_kl", "log-ratio"),
                of_last_step("approx_kl_k3", "k3"),
                of_last_step("kl_loss", "to reference"),
            ),
            width=6,
        ),
        Panel(
            "Gradient norm",
            "Before clipping: mean and largest of the step's updates. Spikes come before NaN.",
            (of_last_step("grad_norm", "mean"), of_last_step("grad_norm_max", "largest")),
            width=6,
        ),
        Panel("Learning rate", "Of the last update.", (of_last_step("lr", "lr"),), unit="sci", width=6),
    ),
)

_STEPS = total(rate("sluice_trainer_phase_seconds_count", 'phase="total"', window=WINDOW))
_PHASES = total(rate("sluice_trainer_phase_seconds_sum", 'phase!="total"', window=WINDOW), "phase")

STEP_TIME = Section(
    "Where a training step's time goes",
    (
        Panel(
            "Seconds a step by phase",
            "Mean seconds of a training step, split by phase. A thick `wait` means that rollouts are the slow part.",
            (Query(f"{_PHASES} / on (namespace, run) group_left () ({_STEPS} > 0)", "{{phase}} · {{run}}"),),
            Kind.STACK,
            unit="s",
            width=12,
        ),
        Panel(
            "Trainer's time",
            "What rank 0 does, as shares of the time; also while one phase lasts.",
            (
                Query(
                    f"max by (namespace, run, doing) ({rate('sluice_trainer_time_seconds_total')})",
                    "{{doing}} · {{run}}",
                ),
            ),
            Kind.STACK,
            unit="percentunit",
            width=12,
            maximum=1,
        ),
    ),
)

PAGE = Page(
    uid="sluice-training",
    title="Sluice: training",
    says="Who waits for whom, whether the run learns, and whether the optimization is healthy.",
    sections=(WHO_WAITS_FOR_WHOM, PROGRESS, LEARNING, POLICY, OPTIMIZATION, STEP_TIME),
)
