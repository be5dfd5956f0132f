"""Verdicts kept in Redis by content, and the agreement of two verifiers: with a real server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.reward import metrics
from services.reward.agreement import SecondOpinion, outcome
from services.reward.cache import CachedJudges
from services.reward.routing import Routes
from sluice.local.binaries import valkey_server
from sluice.telemetry import get_logger
from sluice.transport.reward import RewardClient
from sluice.types import ScoreItem, Verdict, VerdictKind
from tests.servers import free_port, wait_for_port

MakeItem = Callable[..., ScoreItem]
LOG = get_logger("reward")
LABELS = {"math": "math@1", "mine": "mine@1", "exact": "exact@1"}


class Redis:
    """A Redis-protocol server of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [valkey_server(), "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        self._process = subprocess.Popen([*command, str(self._folder)], stdout=subprocess.DEVNULL)
        wait_for_port(self._port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    server.start()
    yield server
    server.kill()


class CountingJudges:
    """Scores 1 for every item and remembers what it was asked."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels, self.asked = labels, list[tuple[str, str]]()

    async def score(self, items: Sequence[tuple[str, ScoreItem]]) -> list[Verdict]:
        self.asked += [(name, item.response) for name, item in items]
        return [self._verdict(name, item) for name, item in items]

    def _verdict(self, name: str, item: ScoreItem) -> Verdict:
        if item.response == "fail":
            return Verdict(VerdictKind.TIMEOUT, None, None, "", self.labels[name], 5.0, "slow")
        return Verdict(VerdictKind.SCORED, 1.0, 0.5, item.response, self.labels[name], 0.25)


async def cached(redis: Redis, judges: CountingJudges, items: Sequence[tuple[str, ScoreItem]]) -> list[Verdict]:
    """Asked through a cache of its own, as another replica would."""
    cache = CachedJudges(judges, judges.labels, redis.url, LOG)
    try:
        return await cache.score(items)
    finally:
        await cache.close()


async def test_what_one_replica_judged_another_one_knows(redis: Redis, make_item: MakeItem) -> None:
    judges = CountingJudges(LABELS)
    items = [("math", make_item(text, id=f"run/{n}/0")) for n, text in enumerate(("a", "b", "fail"))]
    first = await cached(redis, judges, items)
    again = await cached(redis, judges, [("math", make_item("b", id="other/7/3")), *items])
    assert again == [first[1], *first]
    assert judges.asked == [("math", "a"), ("math", "b"), ("math", "fail"), ("math", "fail")]


async def test_another_version_or_another_record_is_judged_anew(redis: Redis, make_item: MakeItem) -> None:
    judges = CountingJudges(LABELS)
    await cached(redis, judges, [("math", make_item("a"))])
    newer = CountingJudges(LABELS | {"math": "math@2"})
    (verdict,) = await cached(redis, newer, [("math", make_item("a"))])
    assert (verdict.verifier, newer.asked) == ("math@2", [("math", "a")])
    for field in ({"ground_truth": "7"}, {"prompt": "q"}, {"extra_info": '{"x":1}'}):
        await cached(redis, judges, [("math", make_item("a", **field))])
    assert len(judges.asked) == 4


async def test_a_users_verifier_may_look_at_the_id_and_cheap_ones_are_not_looked_up(
    redis: Redis, make_item: MakeItem
) -> None:
    judges = CountingJudges(LABELS)
    for identity in ("r/1/0", "r/1/1"):
        await cached(redis, judges, [("mine", make_item("a", id=identity)), ("exact", make_item("a"))])
    assert judges.asked == [("mine", "a"), ("exact", "a")] * 2


async def test_a_lost_redis_is_no_error_and_is_used_again_when_it_is_back(
    redis: Redis, make_item: MakeItem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.reward.cache.LOST_SECONDS", 0.1)
    judges = CountingJudges(LABELS)
    cache = CachedJudges(judges, LABELS, redis.url, LOG)
    items = [("math", make_item("a"))]
    await cache.score(items)
    redis.kill()
    assert (await cache.score(items))[0].score == 0.5
    redis.start()
    await asyncio.sleep(0.2)
    for _ in range(2):
        await cache.score(items)
    assert judges.asked == [("math", "a")] * 3
    await cache.close()


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (1.0, 1.0, "both_right"),
        (0.0, 0.0, "both_wrong"),
        (1.0, 0.0, "only_first"),
        (0.0, 1.0, "only_second"),
        (None, 1.0, "failed"),
        (None, None, "failed"),
    ],
)
def test_agreement_compares_what_two_verifiers_call_right(
    first: float | None, second: float | None, found: str
) -> None:
    assert outcome(_verdict(first), _verdict(second)) == found


def _verdict(acc: float | None) -> Verdict:
    kind = VerdictKind.ERROR if acc is None else VerdictKind.SCORED
    return Verdict(kind, acc, acc, "", "v", 0.0)


async def test_a_second_opinion_is_asked_for_a_stable_share_of_whole_groups(make_item: MakeItem) -> None:
    judges = CountingJudges(LABELS)
    second = SecondOpinion(judges, "exact", 0.3, LOG)
    routes = Routes(["math", "exact"], {})
    groups = [[make_item("a", id=f"run/{n}/{i}", data_source="math") for i in range(4)] for n in range(200)]
    for _ in range(2):
        for items in groups:
            second.consider(items, [_verdict(0.0)] * len(items), routes)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    chosen = len(judges.asked) / 2 / 4
    assert chosen == int(chosen)
    assert 30 <= chosen <= 90
    counted = metrics.AGREEMENT.labels("math", "exact", "only_second")._value.get()
    assert counted == len(judges.asked)
    second.consider([make_item("a", data_source="exact")], [_verdict(1.0)], routes)
    await second.close()


async def test_the_service_exports_agreement_accuracy_and_extraction_failures(
    start_replica: Callable[..., Any], make_item: MakeItem, redis: Redis
) -> None:
    replica = await asyncio.to_thread(
        lambda: start_replica(SLUICE_REWARD_SECOND="math", SLUICE_REWARD_SECOND_SHARE="1", SLUICE_REDIS_URL=redis.url)
    )
    client = RewardClient([replica.address], deadline_seconds=60)
    responses = ["Answer: 34", "**Answer:** 34", "no idea at all", "Answer: 7"]
    await client.score([make_item(text, id=f"run/1/{i}") for i, text in enumerate(responses)])
    await client.close()
    wanted = (
        'sluice_reward_agreement_total{outcome="both_right",second="math",verifier="math_dapo"} 1.0',
        'sluice_reward_agreement_total{outcome="only_second",second="math",verifier="math_dapo"} 1.0',
        'sluice_reward_agreement_total{outcome="both_wrong",second="math",verifier="math_dapo"} 2.0',
        'sluice_reward_correct_total{verifier="math_dapo"} 1.0',
        'sluice_reward_extraction_failures_total{verifier="math_dapo"} 1.0',
        "sluice_reward_request_items_sum 4.0",
    )
    deadline = asyncio.get_running_loop().time() + 30
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{replica.metrics_port}", trust_env=False) as http:
        while missing := set(wanted) - set((await http.get("/metrics")).text.splitlines()):
            assert asyncio.get_running_loop().time() < deadline, missing
            await asyncio.sleep(0.1)


def test_compare_reports_how_far_two_verifiers_agree_and_check_names_unusable_truths(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [("Answer: 34", "34"), ("**Answer:** 34", "34"), ("Answer: 7", "34"), ("Answer: $\\frac12$", "\\frac{1}{")]
    file.write_text("".join(json.dumps({"response": r, "ground_truth": t}) + "\n" for r, t in rows))

    def run(*options: str) -> tuple[int, list[dict[str, Any]]]:
        command = [sys.executable, "-m", "services.reward", "verify", str(file), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    status, lines = run("--compare", "math_dapo", "math")
    assert (status, [line["row"] for line in lines[:-1]]) == (0, [2, 4])
    counts = {"both_right": 1, "both_wrong": 1, "only_first": 0, "only_second": 1, "failed": 1}
    assert lines[-1] | counts == lines[-1]
    assert (lines[-1]["agreement"], lines[-1]["kappa"]) == (round(2 / 3, 6), 0.4)
    status, lines = run("--check-truths", "math")
    assert (status, [line["row"] for line in lines]) == (1, [4])
    assert "cannot be read" in lines[0]["message"]
