"""Dashboard "Rollouts and weights": how fast tokens come, and how policy versions reach the engines."""

from __future__ import annotations

from panels.panel import WINDOW, Kind, Page, Panel, Query, Section, here, mean, quantile, rate, runs, total

LOGPROB_GAP_LIMIT = 0.1

GENERATION = Section(
    "Generation",
    (
        Panel(
            "Tokens a second",
            "Response tokens of finished rollouts, kept or not, and what each engine generates now.",
            (
                Query(total(rate("sluice_rollout_tokens_total")), "finished · {{run}}"),
                Query(here("sglang:gen_throughput"), "engine {{instance}}"),
            ),
        ),
        Panel(
            "Running and waiting requests",
            "Of each engine. Waiting ones while few run: the cache is too small.",
            (
                Query(here("sglang:num_running_reqs"), "running {{instance}}"),
                Query(here("sglang:num_queue_reqs"), "waiting {{instance}}"),
            ),
        ),
        Panel(
            "KV cache in use",
            "Share of each engine's cache. Near 1 requests are retracted and computed again.",
            (Query(here("sglang:token_usage"), "{{instance}}"),),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Workers' time",
            "What the rollout workers do, as shares of their time. Idle workers wait for prompts.",
            (
                Query(
                    f"avg by (namespace, run, doing) ({rate('sluice_rollout_time_seconds_total')})",
                    "{{doing}} · {{run}}",
                ),
            ),
            Kind.STACK,
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Groups held against slots",
            "Groups at each worker, and how many it may hold.",
            (
                Query(runs("sluice_rollout_in_flight_groups"), "held {{instance}}"),
                Query(runs("sluice_rollout_slots"), "slots {{instance}}"),
            ),
        ),
        Panel(
            "Seconds for a group",
            "Median and 95th percentile of the engine's time for a group, and of the time until it had its verdicts.",
            (
                Query(quantile(0.5, "sluice_rollout_generate_seconds"), "generate, median · {{run}}"),
                Query(quantile(0.95, "sluice_rollout_generate_seconds"), "generate, 95 % · {{run}}"),
                Query(quantile(0.95, "sluice_rollout_reward_seconds"), "reward, 95 % · {{run}}"),
            ),
            unit="s",
        ),
    ),
)

VERSIONS = Section(
    "Policy versions",
    (
        Panel(
            "Published and served",
            "The newest published policy version, and what each worker's engine serves.",
            (
                Query(f"max by (namespace, run) ({runs('sluice_published_policy_version')})", "published · {{run}}"),
                Query(runs("sluice_rollout_policy_version"), "served {{instance}}"),
            ),
            width=12,
        ),
        Panel(
            "Version skew",
            "How far the slowest worker is behind. More than the staleness bound plus one: its rollouts come too late.",
            (
                Query(f"max by (namespace, run) ({runs('sluice_version_skew_steps')})", "skew · {{run}}"),
                Query(f"max by (namespace, run) ({runs('sluice_staleness_bound_steps')}) + 1", "alert · {{run}}"),
            ),
            width=12,
        ),
    ),
)

AGREEMENT = Section(
    "Do trainer and engine compute the same model",
    (
        Panel(
            "Log-prob gap",
            "Mean |trainer − engine| log-prob of the same tokens, in nats. It grows with staleness; a jump at the same "
            "staleness means that the two no longer compute the same model.",
            (Query(runs("sluice_trainer_logprob_gap_mean"), "{{run}}"),),
            limit=LOGPROB_GAP_LIMIT,
        ),
        Panel(
            "Probabilities of trainer and engine",
            "Correlation of the probabilities that the two give to the same tokens: 1 when they agree.",
            (Query(runs("sluice_trainer_prob_correlation"), "correlation · {{run}}"),),
            maximum=1,
        ),
        Panel(
            "Importance weights",
            "What corrects for the difference: their mean, the share of the tokens that they leave as an effective "
            "sample, and the share that was rejected.",
            (
                Query(runs("sluice_trainer_importance_weight_mean"), "mean weight · {{run}}"),
                Query(runs("sluice_trainer_effective_sample_size"), "effective sample · {{run}}"),
                Query(runs("sluice_trainer_rejected_token_fraction"), "rejected · {{run}}"),
            ),
        ),
    ),
)

WEIGHTS = Section(
    "Weight sync",
    (
        Panel(
            "Sync seconds",
            "Mean seconds from noticing a version to serving it; of that, until its files are here and verified; the "
            "trainer's seconds to publish it.",
            (
                Query(mean("sluice_rollout_weight_sync_seconds"), "sync · {{run}}"),
                Query(mean("sluice_rollout_weight_fetch_seconds"), "of that, fetch · {{run}}"),
                Query(mean("sluice_trainer_phase_seconds", only='phase="publish"'), "publish · {{run}}"),
            ),
            unit="s",
        ),
        Panel(
            "Update stall",
            "Mean seconds for which an engine generates nothing, because it takes a policy version.",
            (Query(mean("sluice_rollout_update_stall_seconds"), "{{run}}"),),
            unit="s",
        ),
        Panel(
            "Bytes a second",
            "Bytes of policy versions that the trainer published and that workers applied.",
            (
                Query(total(rate("sluice_trainer_published_bytes_total", window=WINDOW)), "published · {{run}}"),
                Query(total(rate("sluice_rollout_weight_sync_bytes_total", window=WINDOW)), "applied · {{run}}"),
            ),
            unit="Bps",
        ),
    ),
)

PAGE = Page(
    uid="sluice-rollouts",
    title="Sluice: rollouts and weights",
    says="How fast tokens come, which policy version made them, and what it costs to bring a new one to the engines.",
    sections=(GENERATION, VERSIONS, WEIGHTS, AGREEMENT),
)
