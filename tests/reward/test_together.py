"""Small requests that share a call: each gets its own verdicts, and none another's delay or failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from sluice.errors import PermanentError
from sluice.transport.reward import MAX_MESSAGE_BYTES, RewardClient
from sluice.transport.together import SMALL_ITEMS, Together
from sluice.types import ScoreItem, Verdict, VerdictKind

MakeItem = Callable[..., ScoreItem]
Start = Callable[..., Any]


async def test_small_requests_share_calls_and_neither_a_hanging_check_nor_a_refusal_touches_the_others(
    start_replica: Start, make_item: MakeItem
) -> None:
    replica = start_replica(SLUICE_REWARD_TIMEOUT_SECONDS="4")
    client = RewardClient([replica.address], deadline_seconds=30)

    async def extracted(number: int) -> list[str]:
        items = [make_item(f"Answer: {number}", id=f"{number}/{i}") for i in range(2)]
        return [verdict.extracted for verdict in await client.score(items)]

    async def all_at_once() -> list[list[str]]:
        return await asyncio.gather(*(extracted(number) for number in range(50)))

    assert await all_at_once() == [[str(number)] * 2 for number in range(50)]
    assert await _calls(replica) < 10

    hanging = asyncio.ensure_future(client.score([make_item("hang", data_source="naughty")]))
    begun = time.monotonic()
    assert await all_at_once() == [[str(number)] * 2 for number in range(50)]
    assert time.monotonic() - begun < 4, "they are not held up by a check that takes its whole limit"
    assert (await hanging)[0].kind is VerdictKind.TIMEOUT
    await client.close()

    client = RewardClient([replica.address], deadline_seconds=30)
    huge = asyncio.ensure_future(client.score([make_item("x" * (MAX_MESSAGE_BYTES + 1), id="huge")]))
    assert await all_at_once() == [[str(number)] * 2 for number in range(50)]
    with pytest.raises(PermanentError, match="item 'huge'"):
        await huge
    await client.close()


async def _calls(replica: Any) -> float:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{replica.metrics_port}", trust_env=False) as http:
        page = (await http.get("/metrics")).text
    line = next(line for line in page.splitlines() if line.startswith('sluice_reward_requests_total{code="OK"}'))
    return float(line.rpartition(" ")[2])


async def test_who_comes_alone_or_with_many_items_shares_no_call_and_a_close_leaves_nobody_waiting(
    make_item: MakeItem,
) -> None:
    calls: list[int] = []
    answered = asyncio.Event()

    async def ask(items: Sequence[ScoreItem]) -> list[Verdict]:
        calls.append(len(items))
        await answered.wait()
        return []

    together = Together(ask)
    large = [make_item("x")] * (SMALL_ITEMS + 1)
    asked = [asyncio.ensure_future(together.score(items)) for items in (large, [make_item("x")] * 3, large)]
    await asyncio.sleep(0.05)
    assert calls == [SMALL_ITEMS + 1, SMALL_ITEMS + 1, 3]
    asked += [asyncio.ensure_future(together.score([make_item("x")])) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert calls[3:] == [2]
    await together.close()
    await asyncio.sleep(0.05)
    assert calls[4:] == [1, 1], "each asks by itself"
    answered.set()
    await asyncio.gather(*asked)

    asked = [asyncio.ensure_future(together.score([make_item("x")])) for _ in range(2)]
    for _ in range(3):  # turns of the event loop: the shared call is made, and has not begun
        await asyncio.sleep(0)
    await together.close()
    async with asyncio.timeout(5):
        await asyncio.gather(*asked)
    assert calls[6:] == [1, 1], "also of a call that never began"
