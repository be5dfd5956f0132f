"""Dashboard "Services and faults": what is up, what is repeated, what fails, what fills up."""

from __future__ import annotations

from panels.panel import WINDOW, Kind, Page, Panel, Query, Section, here, rate, runs, total

SLUICE_JOBS = 'job=~".*sluice.*"'
"""Every scrape job of a deployment has this in its name."""
FIRING = here("ALERTS", 'alertname=~"Sluice.*"', 'alertstate="firing"')
STREAM_LIMIT = 0.85
VERIFIER_LIMIT = 0.05


def of_processes(metric: str) -> str:
    """A metric that the client library gives every process."""
    return here(metric, SLUICE_JOBS)


def seconds(q: float, histogram: str, *by: str) -> str:
    """A quantile over all replicas of the reward service, which serves all runs alike."""
    labels = ", ".join(("namespace", *by, "le"))
    return f"histogram_quantile({q}, sum by ({labels}) (rate({here(f'{histogram}_bucket')}[{WINDOW}])))"


def verdicts(*matchers: str) -> str:
    """Verdicts a second of each verifier."""
    return f"sum by (namespace, verifier) (rate({here('sluice_reward_verdicts_total', *matchers)}[{WINDOW}]))"


UP = Section(
    "What is up",
    (
        Panel(
            "Alerts firing",
            "By name; what each means and what to do is in the runbook, docs/operations.md.",
            (Query(f"count by (namespace, alertname) ({FIRING}) or vector(0)", "{{alertname}} {{namespace}}"),),
            Kind.NUMBERS,
            width=6,
            limit=1,
        ),
        Panel(
            "Processes up",
            "How many replicas of each service answer.",
            (Query(f"sum by (namespace, job) ({of_processes('up')})", "{{job}} {{namespace}}"),),
            width=6,
        ),
        Panel(
            "Lease holder",
            "Which coordinator holds each run: exactly one.",
            (Query(f"{runs('sluice_lease_held')} == 1", "{{run}}: {{instance}}"),),
            Kind.NAMES,
            width=6,
        ),
        Panel(
            "Restarts in the last hour",
            "Of each process; the lineage of the trainer rises with each of its restarts during a run. A trainer also "
            "starts anew after each run.",
            (
                Query(f"changes({of_processes('process_start_time_seconds')}[1h])", "{{job}} {{instance}}"),
                Query(f"max by (namespace, run) ({runs('sluice_trainer_lineage')})", "trainer lineage · {{run}}"),
            ),
            width=6,
        ),
    ),
)

_NATS_RETRIES = f"rate({here('sluice_nats_retries_total')}[{WINDOW}])"
_UNFINISHED = rate("sluice_rollout_groups_total", 'status!="scored"', window=WINDOW)

REPEATS = Section(
    "What is repeated or lost",
    (
        Panel(
            "Redeliveries a minute",
            "Prompts that a worker pulled and that had been delivered before. Some after a worker's death are right; a "
            "steady stream means that groups are never finished.",
            (Query(f"60 * {total(rate('sluice_rollout_redeliveries_total', window=WINDOW))}", "{{run}}"),),
        ),
        Panel(
            "Retries a minute",
            "Requests to NATS and Score calls that had to be repeated.",
            (
                Query(f"60 * sum by (namespace, job) ({_NATS_RETRIES})", "NATS, {{job}} {{namespace}}"),
                Query(f"60 * {total(rate('sluice_rollout_reward_retries_total', window=WINDOW))}", "Score · {{run}}"),
            ),
        ),
        Panel(
            "Attempts that came to nothing, a minute",
            "Groups that a worker gave back, lost to another attempt or could not finish.",
            (Query(f"60 * {total(_UNFINISHED, 'status')}", "{{status}} · {{run}}"),),
            Kind.STACK,
        ),
    ),
)

_SCORED = 'kind="scored"'

VERIFIERS = Section(
    "Verifiers",
    (
        Panel(
            "Verdicts that failed",
            "Share of verdicts that are a timeout or an error. A failure is never a 0: its group is dropped.",
            (
                Query(
                    f"1 - {verdicts(_SCORED)} / ({verdicts()} > 0)",
                    "{{verifier}} {{namespace}}",
                ),
            ),
            unit="percentunit",
            limit=VERIFIER_LIMIT,
        ),
        Panel(
            "Verifier latency",
            "Seconds of a check itself, 50th and 99th percentile, and of a whole Score request, 99th.",
            (
                Query(seconds(0.5, "sluice_reward_verdict_seconds", "verifier"), "{{verifier}}, median {{namespace}}"),
                Query(seconds(0.99, "sluice_reward_verdict_seconds", "verifier"), "{{verifier}}, 99 % {{namespace}}"),
                Query(seconds(0.99, "sluice_reward_request_seconds"), "request, 99 % {{namespace}}"),
            ),
            unit="s",
        ),
        Panel(
            "Reward service at work",
            "Items without a verdict yet, and how many checks run of those that can run at once.",
            (
                Query(f"sum by (namespace) ({here('sluice_reward_pending_items')})", "pending items {{namespace}}"),
                Query(f"sum by (namespace) ({here('sluice_reward_busy_lanes')})", "lanes at work {{namespace}}"),
                Query(f"sum by (namespace) ({here('sluice_reward_lanes')})", "lanes {{namespace}}"),
            ),
        ),
    ),
)

_WAITED = f"max by (namespace, run, wait) ({runs('sluice_wait_seconds')})"
_DEADLINE = f"max by (namespace, run, wait) ({runs('sluice_wait_deadline_seconds')})"

WAITS = Section(
    "Waits by name",
    (
        Panel(
            "The run's waits",
            "How long each wait of the coordinator has lasted. What each waits for is in docs/operations.md.",
            (Query(_WAITED, "{{wait}} · {{run}}"),),
            unit="s",
            width=6,
        ),
        Panel(
            "The run's waits against their deadlines",
            "At 100 % the wait becomes an alarm.",
            (Query(f"{_WAITED} / {_DEADLINE}", "{{wait}} · {{run}}"),),
            unit="percentunit",
            width=6,
            limit=1,
        ),
        Panel(
            "Waits of the workers",
            "Seconds a second spent in each wait, all groups added up.",
            (Query(total(rate("sluice_rollout_wait_seconds_total"), "wait") + " > 0", "{{wait}} · {{run}}"),),
            Kind.STACK,
            width=6,
        ),
        Panel(
            "Waits of the trainer",
            "Share of rank 0's time in each wait.",
            (Query(total(rate("sluice_trainer_wait_seconds_total"), "wait") + " > 0", "{{wait}} · {{run}}"),),
            Kind.STACK,
            unit="percentunit",
            width=6,
            maximum=1,
        ),
    ),
)

_STREAM_USED = f"{here('sluice_stream_bytes')} / sluice_stream_limit_bytes"
_DISK_FREE = f"{here('sluice_trainer_disk_free_bytes')} / sluice_trainer_disk_size_bytes"
_CACHE_FREE = f"{here('sluice_rollout_disk_free_bytes')} / sluice_rollout_disk_size_bytes"

STORAGE = Section(
    "Streams, disks and memory",
    (
        Panel(
            "Stream sizes",
            "Bytes in each JetStream stream.",
            (
                Query(f"max by (namespace, stream) ({here('sluice_stream_bytes')})", "{{stream}} {{namespace}}"),
                Query(f"max by (namespace) ({here('sluice_jetstream_storage_bytes')})", "all, on disk {{namespace}}"),
            ),
            unit="bytes",
            width=6,
        ),
        Panel(
            "Streams against their limits",
            "A checkpoint comes early when ROLLOUTS is three quarters full; EVENTS drops its oldest.",
            (Query(f"max by (namespace, stream) ({_STREAM_USED})", "{{stream}} {{namespace}}"),),
            unit="percentunit",
            width=6,
            maximum=1,
            limit=STREAM_LIMIT,
        ),
        Panel(
            "Free disk space",
            "Share that is free where weights, checkpoints and the workers' caches are.",
            (
                Query(f"min by (namespace, folder) ({_DISK_FREE})", "{{folder}} {{namespace}}"),
                Query(f"min by (namespace, instance) ({_CACHE_FREE})", "cache of {{instance}} {{namespace}}"),
            ),
            unit="percentunit",
            width=6,
            maximum=1,
        ),
        Panel(
            "Memory",
            "Resident memory of each process, and the most that rank 0 of the trainer used (of its GPU, if any).",
            (
                Query(of_processes("process_resident_memory_bytes"), "{{job}} {{instance}}"),
                Query(runs("sluice_trainer_peak_memory_bytes"), "trainer, peak · {{run}}"),
            ),
            unit="bytes",
            width=6,
        ),
    ),
)

PAGE = Page(
    uid="sluice-services",
    title="Sluice: services and faults",
    says="What is up, what is repeated, what fails, what waits and what fills up.",
    sections=(UP, REPEATS, VERIFIERS, WAITS, STORAGE),
)
