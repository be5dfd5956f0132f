"""All metrics of the reward service."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

VERDICTS = Counter(
    "sluice_reward_verdicts_total",
    "Verdicts given, by verifier and kind; `unknown` had no verifier.",
    ["verifier", "kind"],
)
VERDICT_SECONDS = Histogram(
    "sluice_reward_verdict_seconds",
    "Time a check itself took.",
    ["verifier"],
    buckets=(1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
)
REQUESTS = Counter("sluice_reward_requests_total", "Score requests, by gRPC status code.", ["code"])
REQUEST_SECONDS = Histogram(
    "sluice_reward_request_seconds",
    "Time from a Score request to its verdicts.",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
)
PENDING = Gauge("sluice_reward_pending_items", "Items accepted and without a verdict yet.")
LANES = Gauge("sluice_reward_lanes", "Checks that can run at once: SLUICE_REWARD_WORKERS.")
BUSY_LANES = Gauge("sluice_reward_busy_lanes", "Lanes with a check at work.")
WORKERS = Gauge("sluice_reward_workers", "Worker processes alive, spares included.")
WORKERS_LOST = Counter(
    "sluice_reward_workers_lost_total", "Worker processes that were killed or died, by reason.", ["reason"]
)
EXTRACTION_FAILURES = Counter(
    "sluice_reward_extraction_failures_total", "Scored verdicts in which no answer was found.", ["verifier"]
)
CORRECT = Counter(
    "sluice_reward_correct_total",
    "Sum of acc over scored verdicts; divided by their count it is accuracy.",
    ["verifier"],
)
CACHE = Counter(
    "sluice_reward_cache_total", "Verdicts looked up in the cache: hit, miss, or lost with Redis.", ["outcome"]
)
AGREEMENT = Counter(
    "sluice_reward_agreement_total",
    "Verdicts of a sample of groups compared with a second verifier's: both_right, both_wrong, only_first, "
    "only_second, failed.",
    ["verifier", "second", "outcome"],
)
REQUEST_ITEMS = Histogram("sluice_reward_request_items", "Items of a Score request.", buckets=(1, 4, 16, 64, 256, 1024))

# Known label values are there from the start, so that a share never lacks a term.
for _reason in ("timeout", "set_aside", "died", "surplus"):
    WORKERS_LOST.labels(_reason)
for _outcome in ("hit", "miss", "lost"):
    CACHE.labels(_outcome)
