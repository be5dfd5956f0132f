"""The fenced log against a real server: one writer, no gaps, and answers that get lost."""

from __future__ import annotations

import asyncio

import pytest

from sluice.errors import FencedError
from sluice.transport import log as log_module
from sluice.transport.log import FencedLog, follow_stream, ledger_log, read_stream
from sluice.transport.nats import Bus
from sluice.types import Claim, Drop, DropReason, LedgerRecord
from sluice.wire import subjects
from tests.servers import NatsServer


async def test_records_come_back_in_order_with_their_sequence(bus: Bus) -> None:
    log = ledger_log(bus, "run")
    records: list[LedgerRecord] = [Claim("a"), Drop((1, 2), DropReason.STRAGGLER), Claim("b")]
    sequences = [await log.append(record) for record in records]
    entries = await ledger_log(bus, "run").read()
    assert [entry.record for entry in entries] == records
    assert [entry.sequence for entry in entries] == sequences
    assert sequences == sorted(sequences)


async def test_a_writer_that_was_overtaken_is_refused_and_nothing_is_stored(bus: Bus) -> None:
    old, new = ledger_log(bus, "run"), ledger_log(bus, "run")
    await old.append(Claim("old"))
    await new.read()
    await new.append(Claim("new"))
    with pytest.raises(FencedError, match=r"ledger\.run"):
        await old.append(Claim("zombie"))
    assert [entry.record for entry in await ledger_log(bus, "run").read()] == [Claim("old"), Claim("new")]


async def test_runs_do_not_fence_each_other(bus: Bus) -> None:
    one, two = ledger_log(bus, "one"), ledger_log(bus, "two")
    for _ in range(3):
        await one.append(Claim("a"))
        await two.append(Claim("b"))
    assert len(await ledger_log(bus, "one").read()) == 3


async def test_an_append_whose_answer_was_lost_counts_as_stored_if_the_last_record_is_its_own(bus: Bus) -> None:
    log = ledger_log(bus, "run")
    await log.append(Claim("a"))
    stale = log.last
    sequence = await log.append(Claim("lost answer"))
    log.last = stale
    assert await log.append(Claim("lost answer")) == sequence
    assert len(await ledger_log(bus, "run").read()) == 2


async def test_only_one_of_many_writers_at_the_same_fence_wins(bus: Bus) -> None:
    logs: list[FencedLog[LedgerRecord]] = [ledger_log(bus, "run") for _ in range(8)]
    results = await asyncio.gather(*(log.append(Claim(str(i))) for i, log in enumerate(logs)), return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, FencedError) for result in results) == 7


async def test_what_was_acknowledged_survives_kill_9_of_the_server_and_the_writer_goes_on(
    bus: Bus, nats_server: NatsServer
) -> None:
    log = ledger_log(bus, "run")
    await log.append(Claim("before"))
    nats_server.kill()
    append = asyncio.create_task(log.append(Claim("after")))
    await asyncio.sleep(0.3)
    nats_server.start()
    await append
    assert [entry.record for entry in await ledger_log(bus, "run").read()] == [Claim("before"), Claim("after")]


async def test_a_follower_misses_nothing_and_repeats_nothing_over_a_restart_of_the_server(
    bus: Bus, nats_server: NatsServer
) -> None:
    log = ledger_log(bus, "run")
    seen: list[int] = []

    async def follow() -> None:
        async for sequence, _, _ in follow_stream(bus, subjects.LEDGER, subjects.ledger("run")):
            seen.append(sequence)

    follower = asyncio.create_task(follow())
    written = [await log.append(Claim(str(i))) for i in range(5)]
    await asyncio.sleep(0.3)
    nats_server.kill()
    nats_server.start()
    written += [await log.append(Claim(str(i))) for i in range(5, 10)]
    async with asyncio.timeout(20):
        while len(seen) < 10:
            await asyncio.sleep(0.05)
    follower.cancel()
    assert seen == written


async def test_who_reads_what_is_purged_meanwhile_comes_to_an_end(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "QUIET_SECONDS", 0.3)
    for n in range(log_module.FETCH + 4):  # more than come at once
        await bus.publish(subjects.group("run", n), b"x")
    await bus.publish(subjects.group("other", 0), b"x")
    read: list[int] = []
    async with asyncio.timeout(10):
        async for sequence, _, _ in read_stream(bus, subjects.GROUPS, subjects.groups("run")):
            if not read:
                await bus.js.purge_stream(subjects.GROUPS, subject=subjects.groups("run"))
            read.append(sequence)
    assert read == list(range(1, log_module.FETCH + 1))


async def test_who_has_read_a_subject_leaves_nothing_behind_on_the_server(bus: Bus) -> None:
    log = ledger_log(bus, "run")
    await log.append(Claim("a"))
    assert len(await ledger_log(bus, "run").read()) == 1
    assert (await bus.js.stream_info(subjects.LEDGER)).state.consumer_count == 0
