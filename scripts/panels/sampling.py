"""Dashboard "Dynamic sampling and staleness": what the filter keeps, what is under way, and how old it is."""

from __future__ import annotations

from panels.panel import WINDOW, Kind, Page, Panel, Query, Section, mean, quantile, rate, runs, share, total

KEEP_RATE_LIMIT = 0.05
UNIFORM_LIMIT = 0.9


def share_of_scored(counter: str, *matchers: str) -> str:
    """Groups that a counter saw, as a share of the scored ones."""
    part = total(rate(counter, *matchers, window=WINDOW))
    return share(part, total(rate("sluice_groups_scored_total", window=WINDOW)))


_KEPT = f'label_replace({total(rate("sluice_groups_kept_total", window=WINDOW))}, "reason", "kept", "", "")'
_DROPPED = total(rate("sluice_groups_dropped_total", window=WINDOW), "reason")

FILTER = Section(
    "What the filter keeps",
    (
        Panel(
            "Keep rate",
            "Kept groups of scored groups. Near 0 almost all generation is wasted: the data is too easy or too hard "
            "for this policy. The dashed line is where the alert begins.",
            (
                Query(share_of_scored("sluice_groups_kept_total"), "averaged · {{run}}"),
                Query(runs("sluice_keep_rate"), "last batch · {{run}}"),
            ),
            unit="percentunit",
            maximum=1,
            limit=KEEP_RATE_LIMIT,
        ),
        Panel(
            "Groups a minute by what became of them",
            "Kept groups, and dropped ones by reason.",
            (Query(f"60 * ({_KEPT} or {_DROPPED} > 0)", "{{reason}} · {{run}}"),),
            Kind.STACK,
        ),
        Panel(
            "All correct, all wrong",
            "Share of scored groups whose rollouts are all right (too easy) or all wrong (too hard).",
            (
                Query(share_of_scored("sluice_groups_dropped_total", 'reason="all_correct"'), "all correct · {{run}}"),
                Query(share_of_scored("sluice_groups_dropped_total", 'reason="all_wrong"'), "all wrong · {{run}}"),
            ),
            unit="percentunit",
            maximum=1,
            limit=UNIFORM_LIMIT,
        ),
    ),
)

_ROOM = " - ".join(
    f"max by (namespace, run) ({runs(metric)})"
    for metric in ("sluice_groups_capacity", "sluice_groups_consumed", "sluice_groups_kept_waiting")
)

QUEUE = Section(
    "What is under way",
    (
        Panel(
            "Queue depth",
            "Prompts that no worker has pulled, prompts in workers' hands, and kept groups that wait for their batch.",
            (
                Query(f"max by (namespace, run) ({runs('sluice_prompts_queued')})", "queued · {{run}}"),
                Query(f"max by (namespace, run) ({runs('sluice_prompts_delivered')})", "at workers · {{run}}"),
                Query(f"max by (namespace, run) ({runs('sluice_groups_kept_waiting')})", "kept, waiting · {{run}}"),
            ),
        ),
        Panel(
            "In flight against capacity",
            "Groups issued and not yet stored; how many the staleness bound allows now; how many the workers have room "
            "for. Flat at the bound: generation waits for the trainer.",
            (
                Query(f"max by (namespace, run) ({runs('sluice_groups_in_flight')})", "in flight · {{run}}"),
                Query(_ROOM, "allowed by staleness · {{run}}"),
                Query(total(runs("sluice_rollout_slots")), "slots of workers · {{run}}"),
            ),
        ),
        Panel(
            "From issue to stored group",
            "Seconds of a group. The distance between the median and the 95th percentile is the long tail of lengths.",
            (
                Query(quantile(0.5, "sluice_group_seconds"), "median · {{run}}"),
                Query(quantile(0.95, "sluice_group_seconds"), "95 % · {{run}}"),
            ),
            unit="s",
        ),
    ),
)

STALENESS = Section(
    "Staleness",
    (
        Panel(
            "Staleness of consumed groups",
            "Policy versions between a group's issue and the batch that trains it: how many groups in each bucket.",
            (Query(f"sum by (le) ({rate('sluice_batch_staleness_steps_bucket', window=WINDOW)})", "{{le}}"),),
            Kind.HEATMAP,
        ),
        Panel(
            "Staleness against its bound",
            "Of the rollouts of the last training step, by their oldest token. The bound is never passed.",
            (
                Query(runs("sluice_trainer_staleness_mean"), "mean · {{run}}"),
                Query(runs("sluice_trainer_staleness_max"), "maximum · {{run}}"),
                Query(f"max by (namespace, run) ({runs('sluice_staleness_bound_steps')})", "bound · {{run}}"),
            ),
        ),
        Panel(
            "Batch fill time",
            "Seconds from one batch to the next.",
            (
                Query(mean("sluice_batch_fill_seconds"), "mean · {{run}}"),
                Query(quantile(0.9, "sluice_batch_fill_seconds"), "90 % · {{run}}"),
            ),
            unit="s",
        ),
    ),
)

TAIL = Section(
    "Stragglers and lengths",
    (
        Panel(
            "Waits for stragglers",
            "Seconds that a full batch waited for older groups in flight, and the age of the oldest of them. Long "
            "waits: raise the staleness bound, or change `asynchrony.stragglers`.",
            (
                Query(mean("sluice_batch_straggler_seconds"), "batch waited · {{run}}"),
                Query(f"max by (namespace, run) ({runs('sluice_oldest_group_seconds')})", "oldest in flight · {{run}}"),
            ),
            unit="s",
        ),
        Panel(
            "Length of kept against dropped, mean",
            "Tokens of a response. When dropped ones are longer, the filter prefers short answers.",
            (Query(mean("sluice_group_response_tokens", "decision"), "{{decision}} · {{run}}"),),
        ),
        Panel(
            "Length of kept against dropped, 90 %",
            "The same for the long ones.",
            (Query(quantile(0.9, "sluice_group_response_tokens", "decision"), "{{decision}} · {{run}}"),),
        ),
    ),
)

_GROUPS, _GROUPS_KEPT = (f"sluice_prompt_groups{end}" for end in ("_total", "_kept_total"))


def keep_rate_by(label: str) -> Query:
    """Kept of scored groups, for each value of a label."""
    kept, scored = (total(rate(counter, window=WINDOW), label) for counter in (_GROUPS_KEPT, _GROUPS))
    return Query(share(kept, scored), f"{{{{{label}}}}} · {{{{run}}}}")


CURRICULUM = Section(
    "Prompts",
    (
        Panel(
            "Keep rate by data source",
            "Kept groups of scored groups. A source near 0 costs generation and teaches nothing.",
            (keep_rate_by("data_source"),),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Keep rate by difficulty",
            "By how often the policy had been right at the prompt before. `always_right` and `always_wrong` near 0: "
            "`[curriculum]` can skip them by lot.",
            (keep_rate_by("difficulty"),),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Skipped prompts",
            "Turns of the data order a minute that were passed over, and prompts that return by chance only.",
            (
                Query(
                    f"60 * {total(rate('sluice_prompts_skipped_total', window=WINDOW))}", "skipped a minute · {{run}}"
                ),
                Query(f"max by (namespace, run, outcome) ({runs('sluice_prompts_by_lot')})", "{{outcome}} · {{run}}"),
            ),
        ),
    ),
)

PAGE = Page(
    uid="sluice-sampling",
    title="Sluice: dynamic sampling and staleness",
    says="What the filter keeps and drops, what is under way, and how old it is when it trains.",
    sections=(FILTER, QUEUE, STALENESS, TAIL, CURRICULUM),
)
