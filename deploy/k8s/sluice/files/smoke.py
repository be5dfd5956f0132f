"""`helm test`: ask each part that a run needs for a real answer, and say what answered.

Exit code 1 with one line when a part does not answer as it should.
"""

from __future__ import annotations

import asyncio
import os
import sys

from sluice.client import RunsClient
from sluice.errors import SluiceError
from sluice.transport.nats import Bus
from sluice.transport.reward import RewardClient
from sluice.types import ScoreItem
from sluice.wire import subjects

DEADLINE_SECONDS = 60.0


async def ask_api() -> str:
    """The runs API answers to the token."""
    async with RunsClient(os.environ["SLUICE_API_URL"], os.environ["SLUICE_API_TOKEN"]) as client:
        return f"the API lists {len(await client.runs())} runs"


async def ask_nats() -> str:
    """JetStream has the ledger's stream, which the coordinator made."""
    bus = await Bus.connect(os.environ["SLUICE_NATS_URL"], "smoke")
    try:
        config = (await bus.js.stream_info(subjects.LEDGER)).config
        return f"JetStream keeps {subjects.LEDGER} on {config.num_replicas} servers"
    finally:
        await bus.close()


async def ask_reward() -> str:
    """A verifier tells right from wrong."""
    addresses = os.environ["SLUICE_REWARD_ADDRESSES"].split(",")
    client = RewardClient(addresses, DEADLINE_SECONDS)
    items = [
        ScoreItem(
            response, "exact", prompt="2+3=", response=response, ground_truth="5", extra_info="{}", response_length=1
        )
        for response in ("5", "6")
    ]
    try:
        right, wrong = await client.score(items)
    finally:
        await client.close()
    if (right.acc, wrong.acc) != (1.0, 0.0):
        raise SluiceError(f"the reward service says {right} of a right answer and {wrong} of a wrong one")
    return "a reward server tells right from wrong"


async def main() -> int:
    for question in (ask_api, ask_nats, ask_reward):
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                print(f"smoke: {await question()}", flush=True)
        except (SluiceError, TimeoutError) as error:
            print(f"smoke: {question.__name__}: {type(error).__name__}: {error}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
