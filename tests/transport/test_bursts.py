"""Many messages at once against a real server: all are there or named, in order, whatever the server leaves unsaid."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from sluice.errors import ConfigError
from sluice.transport.bursts import BURST_BYTES, Answers, Burst, Message, bursts, runs
from sluice.transport.nats import Bus
from sluice.wire import subjects
from tests.servers import NatsServer


def messages(count: int, size: int = 10) -> list[Message]:
    return [
        Message(subjects.rollouts("run"), bytes([at % 256]) * size, {"Nats-Msg-Id": f"run/{at}"}) for at in range(count)
    ]


async def test_messages_come_back_from_the_sequences_under_which_they_were_stored(bus: Bus) -> None:
    sent = messages(600)  # more than one burst
    sequences = await bus.publish_all(sent)
    found = await bus.fetch_all(subjects.ROLLOUTS, sequences)
    assert [found[sequence] for sequence in sequences] == [message.payload for message in sent]
    assert await bus.publish_all(sent) == sequences, "sent again, they are what is stored already"
    assert await bus.publish_all([]) == []


async def test_what_is_gone_is_missing_and_takes_no_neighbour_with_it(bus: Bus) -> None:
    sequences = await bus.publish_all(messages(8))
    for gone in (sequences[0], sequences[3], sequences[7]):
        await bus.js.delete_msg(subjects.ROLLOUTS, gone)
    found = await bus.fetch_all(subjects.ROLLOUTS, [*sequences, 1000])
    assert sorted(found) == [s for at, s in enumerate(sequences) if at not in (0, 3, 7)]


async def test_a_server_that_gives_one_message_a_request_is_asked_for_each(bus: Bus) -> None:
    asked: list[int] = []

    async def answer(request: Msg) -> None:
        """As servers before 2.11 do: `batch` means nothing to them, and nothing ends what they give."""
        asked.append(json.loads(request.data)["seq"])
        await bus.nc.publish(request.reply, b"%d" % asked[-1], headers={"Nats-Sequence": str(asked[-1])})

    await bus.nc.subscribe("$JS.API.DIRECT.GET.OLD", cb=answer)
    assert await bus.fetch_all("OLD", [7, 5, 6]) == {5: b"5", 6: b"6", 7: b"7"}
    assert asked == [5, 6, 7]


async def test_a_server_that_is_frozen_in_mid_burst_ends_up_with_each_message_once(
    bus: Bus, nats_server: NatsServer
) -> None:
    await bus.publish_all(messages(1))
    assert nats_server.process is not None
    nats_server.process.send_signal(signal.SIGSTOP)
    storing = asyncio.create_task(bus.publish_all(messages(20)))
    await asyncio.sleep(2.5)  # longer than an answer is waited for: they are sent again
    nats_server.process.send_signal(signal.SIGCONT)
    assert await storing == list(range(1, 21))
    assert (await bus.js.stream_info(subjects.ROLLOUTS)).state.messages == 20


async def test_what_cannot_be_sent_does_not_pile_up_while_the_server_is_away(bus: Bus, nats_server: NatsServer) -> None:
    nats_server.stop()
    storing = asyncio.create_task(bus.publish_all(messages(4, 1_000_000)))
    await asyncio.sleep(2.5)  # it is tried again by then
    assert bus.nc.pending_data_size < 100_000, "the client refuses whatever is sent once it keeps 64 MB"
    nats_server.start()
    assert await storing == [1, 2, 3, 4]


async def test_a_limit_that_is_lowered_on_the_running_server_is_named_and_costs_no_connection(tmp_path: Path) -> None:
    server, settings = NatsServer(tmp_path / "nats"), tmp_path / "nats.conf"
    settings.write_text("max_payload: 2MB")
    server.start("-c", str(settings))
    assert server.process is not None
    bus = await Bus.connect(server.url, "test", deadline_seconds=10)
    await bus.ensure_streams()
    settings.write_text("max_payload: 100KB")
    server.process.send_signal(signal.SIGHUP)  # nobody who is connected is told
    await asyncio.sleep(0.3)
    with pytest.raises(ConfigError, match="max_payload of 102400"):
        await bus.publish_all(messages(1, 1_000_000))
    assert await bus.publish_all(messages(1)) == [1]
    await bus.close()
    server.kill()


async def test_an_answer_renews_the_patience_with_its_burst_and_silence_ends_it(bus: Bus) -> None:
    async def answer(request: Msg) -> None:
        number = request.reply.rpartition(".")[2]
        await asyncio.sleep(0.25)
        await bus.nc.publish(request.reply, b'{"stream": "SLOW", "seq": %d}' % (int(number) + 1))

    await bus.nc.subscribe("slow", cb=answer)
    await bus.nc.subscribe("silent")
    burst = Burst(bus.nc, await Answers.open(bus.nc, 0.4))
    stored: dict[int, int] = {}
    await burst.store([Message("slow", b"")] * 4, stored)
    assert stored == {0: 1, 1: 2, 2: 3, 3: 4}
    with pytest.raises(TimeoutError, match=r"no answer for 0\.4 s"):
        await burst.store([Message("silent", b"")], {})
    with pytest.raises(nats.errors.NoRespondersError):
        await burst.store([Message("nobody", b"")], {})


def test_a_burst_holds_no_more_than_its_bytes_unless_one_message_does() -> None:
    sizes = [BURST_BYTES + 1, 10, BURST_BYTES // 2, BURST_BYTES // 2, 5]
    parts = list(bursts([Message("s", bytes(size), {}) for size in sizes]))
    assert [[len(message.payload) for message in part] for part in parts] == [
        [sizes[0]],
        [sizes[1], sizes[2]],
        [sizes[3], sizes[4]],
    ]
    assert not list(bursts([]))


def test_sequences_become_ranges_without_gaps() -> None:
    assert list(runs([9, 3, 4, 5, 4, 11, 10])) == [range(3, 6), range(9, 12)]
    assert not list(runs([]))
