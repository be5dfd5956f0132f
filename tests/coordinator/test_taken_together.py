"""What a coordinator does once for many: decisions after groups that come together, and records read where written."""

from __future__ import annotations

import asyncio

import pytest

from services.coordinator.written import KEPT, Written
from sluice.transport.log import ledger_log
from sluice.transport.nats import Bus
from sluice.types import Claim, Drop, DropReason, Floors, Issue, LedgerRecord
from tests.coordinator.stage import Coordinator, Stage, create, spec, wait_for_state


@pytest.mark.usefixtures("tiny_model")
async def test_groups_that_are_there_together_share_their_issue_records(
    alone: tuple[list[Coordinator], Bus],
) -> None:
    (coordinator,), bus = alone
    stage = Stage(bus, (await create(coordinator, spec()))["id"], keep=0.0)
    await stage.join()
    await wait_for_state(coordinator, stage.run_id, "running")
    before = len(await issued(stage))
    coordinator.freeze()
    done = len(await stage.work(most=8))
    coordinator.thaw()
    after: list[Issue] = []
    async with asyncio.timeout(10):
        while sum(issue.count for issue in after) < done:
            await asyncio.sleep(0.05)
            after = (await issued(stage))[before:]
    assert (done, len(after) < 4) == (8, True), after


async def issued(stage: Stage) -> list[Issue]:
    return [record for record in await stage.ledger() if isinstance(record, Issue)]


async def test_what_this_process_has_written_is_read_as_if_it_had_been_decoded(bus: Bus) -> None:
    written = Written()
    writer, reader = written.log(bus, "r"), written.log(bus, "r")
    kinds: list[LedgerRecord] = [Claim("c"), Issue(0, 2, 0, Floors(0, 0)), Drop((0,), DropReason.ALL_WRONG)]
    for record in kinds:
        await writer.append(record)
    assert await reader.read() == await ledger_log(bus, "r").read()
    for n in range(KEPT + 2):  # more than it keeps
        await writer.append(Claim(f"c{n}"))
    again = await reader.read()
    assert again == (await ledger_log(bus, "r").read())[len(kinds) :]
    assert [entry.record for entry in again] == [Claim(f"c{n}") for n in range(KEPT + 2)]
