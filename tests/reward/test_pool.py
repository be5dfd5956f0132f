"""Checks that hang, die or eat memory cost themselves a verdict and nobody else anything."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.reward.forge import Forge
from services.reward.pool import Pool, PoolSettings
from services.reward.process import WorkerProcess
from services.reward.worker import WorkerLimits
from sluice.errors import ConfigError, PermanentError, TransientError, WaitTimeoutError
from sluice.types import ScoreItem, Verdict, VerdictKind

MakeItem = Callable[..., ScoreItem]
Ask = Callable[..., "asyncio.Future[list[Verdict]]"]

LIMIT_SECONDS = 1.0


@pytest.fixture
def ask(pool: Pool, make_item: MakeItem) -> Ask:
    def ask(*responses: str, verifier: str = "naughty") -> asyncio.Future[list[Verdict]]:
        return asyncio.ensure_future(pool.score([(verifier, make_item(response)) for response in responses]))

    return ask


@pytest.mark.parametrize("order", ["hang", "spin"])
async def test_a_check_that_hangs_gets_a_timeout_after_one_limit(ask: Ask, order: str) -> None:
    begun = time.monotonic()
    (verdict,) = await ask(order)
    assert (verdict.kind, verdict.acc, verdict.score) == (VerdictKind.TIMEOUT, None, None)
    assert "SLUICE_REWARD_TIMEOUT_SECONDS = 1" in verdict.message
    assert time.monotonic() - begun < 2 * LIMIT_SECONDS


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("die", "SIGSEGV"),
        ("eat", "SLUICE_REWARD_MEMORY_BYTES"),
        ("raise", "LookupError: no such answer"),
        ("exit", "SystemExit: 3"),
    ],
)
async def test_a_check_that_fails_gets_an_error_that_says_why_and_never_a_zero(
    ask: Ask, order: str, message: str
) -> None:
    before, verdict, after = await ask("34", order, "7")
    assert (before.kind, before.acc) == (VerdictKind.SCORED, 1.0)
    assert (verdict.kind, verdict.acc, verdict.score) == (VerdictKind.ERROR, None, None)
    assert message in verdict.message
    assert (after.kind, after.acc) == (VerdictKind.SCORED, 0.0)


async def test_only_the_guilty_item_of_a_batch_gets_the_timeout(ask: Ask) -> None:
    verdicts = await ask(*["34"] * 30, "hang", *["34"] * 30)
    kinds = [verdict.kind for verdict in verdicts]
    assert kinds.pop(30) is VerdictKind.TIMEOUT
    assert set(kinds) == {VerdictKind.SCORED}


async def test_a_check_that_prints_does_not_disturb_the_verdicts(ask: Ask) -> None:
    assert [verdict.acc for verdict in await ask("print", "34", "print")] == [1.0, 1.0, 1.0]


async def test_an_item_whose_worker_is_lost_once_for_no_fault_of_its_own_is_judged_again(
    ask: Ask, tmp_path: Path
) -> None:
    (verdict,) = await ask(f"die-once {tmp_path / 'mark'}")
    assert (verdict.kind, verdict.acc) == (VerdictKind.SCORED, 1.0)


async def test_a_pool_of_two_serves_good_items_during_a_storm_of_hanging_ones(ask: Ask) -> None:
    await ask("34")
    storm, waits = [], []

    async def ask_good(verifier: str) -> None:
        begun = time.monotonic()
        (verdict,) = await ask("34", verifier=verifier)
        waits.append(time.monotonic() - begun)
        assert (verdict.kind, verdict.extracted) == (VerdictKind.SCORED, "34" if verifier == "exact" else "")

    good = []
    for _ in range(8):
        storm.append(ask("sleep 60"))
        good.append(asyncio.ensure_future(ask_good("naughty")))
        good.append(asyncio.ensure_future(ask_good("exact")))
        await asyncio.sleep(0.05)
    await asyncio.gather(*good)
    assert not all(bad.done() for bad in storm)
    # Two workers that wait out each limit in turn need four of them.
    assert max(waits) < 2 * LIMIT_SECONDS
    assert {(await bad)[0].kind for bad in storm} == {VerdictKind.TIMEOUT}


async def test_checks_slower_than_the_patience_of_the_pool_still_get_their_whole_limit(ask: Ask) -> None:
    verdicts = await ask(*["sleep 0.4"] * 8)
    assert [(verdict.kind, verdict.acc) for verdict in verdicts] == [(VerdictKind.SCORED, 1.0)] * 8
    assert all(0.4 <= verdict.seconds < LIMIT_SECONDS for verdict in verdicts)


async def test_whatever_a_killed_check_has_started_dies_with_it(ask: Ask, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    (verdict,) = await ask(f"leave-child {pid_file}")
    assert verdict.kind is VerdictKind.TIMEOUT
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while _running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        await asyncio.sleep(0.02)


async def test_a_users_function_sees_the_whole_record_and_its_hash_is_in_the_verdict(
    pool: Pool, make_item: MakeItem
) -> None:
    item = make_item("x", id="right", prompt="why", extra_info='{"a":1}', response_length=7)
    (verdict,) = await pool.score([("graded", item)])
    assert (verdict.score, verdict.acc, verdict.extracted) == (0.7, 1.0, '{"a":1}why')
    assert verdict.verifier.startswith("graded@")


async def test_a_users_function_may_be_async(pool: Pool, make_item: MakeItem) -> None:
    verdicts = await pool.score([("patient", make_item("a b c")), ("patient", make_item("a"))])
    assert [verdict.score for verdict in verdicts] == [3.0, 1.0]


async def test_when_the_template_of_the_workers_is_killed_all_items_are_judged_all_the_same(
    pool: Pool, ask: Ask
) -> None:
    await ask("34")
    templates = _templates()
    slow = ask(*["sleep 0.3"] * 4)
    await asyncio.sleep(0.1)
    for pid in templates:
        os.kill(pid, signal.SIGKILL)
    assert templates
    assert [verdict.acc for verdict in await slow] == [1.0] * 4
    assert (await ask("34"))[0].acc == 1.0


def _templates() -> list[int]:
    """The template processes that this one has started."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"services.reward.template" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_an_abandoned_request_leaves_no_work_behind(pool: Pool, ask: Ask) -> None:
    flood = [ask("hang") for _ in range(200)]
    await asyncio.sleep(0.05)
    for request in flood:
        request.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    begun = time.monotonic()
    assert (await ask("34"))[0].acc == 1.0
    assert time.monotonic() - begun < 3 * LIMIT_SECONDS


async def test_strange_text_comes_back_from_the_workers_unharmed(pool: Pool, make_item: MakeItem) -> None:
    draw = random.Random(0)
    texts = ["".join(chr(draw.randrange(0x110000)) for _ in range(50)) for _ in range(300)]
    verdicts = await pool.score([("exact", make_item(f"<{text}>", f"<{text}>")) for text in texts])
    assert [verdict.extracted for verdict in verdicts] == [f"<{text}>" for text in texts]
    assert {verdict.acc for verdict in verdicts} == {1.0}


async def test_more_items_than_may_wait_are_refused_with_the_knob(pool: Pool, make_item: MakeItem) -> None:
    many = [("exact", make_item("34"))] * 10_001
    with pytest.raises(PermanentError, match="SLUICE_REWARD_MAX_PENDING = 10000"):
        await pool.score(many)
    hanging = asyncio.ensure_future(pool.score([("naughty", make_item("hang"))]))
    await asyncio.sleep(0)
    with pytest.raises(TransientError, match="SLUICE_REWARD_MAX_PENDING = 10000"):
        await pool.score(many[:10_000])
    hanging.cancel()


async def test_a_worker_that_does_not_come_up_is_named_at_the_start(naughty_path: None, tmp_path: Path) -> None:
    unknown = Pool(PoolSettings(1, 1.0, 1_000, WorkerLimits(512 << 20, 30.0, ("mine=no_such_module:f",))))
    with pytest.raises(ConfigError, match="no_such_module"):
        await unknown.start()
    assert not unknown.ready
    with pytest.raises(WaitTimeoutError, match="SLUICE_REWARD_START_SECONDS"):
        forge = Forge(WorkerLimits(512 << 20, 30.0, ()))
        try:
            await WorkerProcess.start(forge, seconds=0.001)
        finally:
            await forge.close()


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
