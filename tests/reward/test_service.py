"""The service as its callers meet it: real processes, real gRPC."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from sluice.errors import ConfigError, PermanentError, TransientError
from sluice.transport.reward import RewardClient
from sluice.types import ScoreItem, VerdictKind
from sluice.wire.score import encode_request
from sluice.wire.v1 import reward_pb2, reward_pb2_grpc

MakeItem = Callable[..., ScoreItem]
Start = Callable[..., Any]


async def test_a_request_gets_its_verdicts_in_order_each_from_the_verifier_of_its_data_source(
    start_replica: Start, make_item: MakeItem
) -> None:
    client = RewardClient([start_replica().address], deadline_seconds=20)
    verdicts = await client.score(
        [
            make_item("Answer: 34", data_source="aime2024"),
            make_item("34", data_source="exact"),
            make_item("#### 7", data_source="openai/gsm8k"),
            make_item("34", data_source="who knows"),
            make_item("hang", data_source="naughty"),
            make_item("x", data_source="graded", response_length=5),
        ]
    )
    await client.close()
    assert [verdict.score for verdict in verdicts] == [1.0, 1.0, 0.0, None, None, 0.5]
    assert [verdict.verifier.partition("@")[0] for verdict in verdicts] == [
        *("math_dapo", "exact", "gsm8k", "", "naughty", "graded")
    ]
    assert verdicts[3].kind is VerdictKind.ERROR
    assert "'who knows'" in verdicts[3].message
    assert "exact, graded, gsm8k, math, math_dapo, math_dapo_boxed, multiple_choice, naughty, " in verdicts[3].message
    assert verdicts[4].kind is VerdictKind.TIMEOUT


async def test_ground_truths_are_checked_by_the_verifier_of_their_data_source_and_no_response_is_judged(
    start_replica: Start, make_item: MakeItem
) -> None:
    client = RewardClient([start_replica(SLUICE_REWARD_TIMEOUT_SECONDS="10").address], deadline_seconds=60)
    asked = [("34", "math"), ("", "math_dapo"), ("{7", "math"), ("x", "who knows"), ("hang", "naughty")]
    faults = await client.check_truths([make_item("hang", truth, source) for truth, source in asked])
    assert [bool(fault) for fault in faults] == [False, True, True, True, False]
    assert faults[1] == "ground_truth is empty" and "'{7' cannot be read" in faults[2]
    assert faults[3] == "no verifier for data source 'who knows' (SLUICE_REWARD_ROUTES)"
    known = await client.verifiers()
    assert known == await client.verifiers() and " math_dapo@" in known and "aime*" in known
    await client.close()


async def test_nothing_asked_nothing_answered_and_large_requests_are_split(
    start_replica: Start, make_item: MakeItem
) -> None:
    client = RewardClient([start_replica().address], deadline_seconds=30)
    assert await client.score([]) == []
    many = [make_item(f"Answer: {number}", id=str(number)) for number in range(2_000)]
    verdicts = await client.score(many)
    assert [verdict.extracted for verdict in verdicts] == [str(number) for number in range(2_000)]
    large = [make_item("x" * (3 << 20) + "Answer: 34", id=str(number)) for number in range(4)]
    assert {verdict.score for verdict in await client.score(large)} == {1.0}
    with pytest.raises(PermanentError, match=r"item 'huge' takes \d+ bytes; a message holds 33554432"):
        await client.score([make_item("x" * (33 << 20), id="huge")])
    await client.close()


async def test_a_replica_killed_under_load_costs_its_callers_nothing(start_replica: Start, make_item: MakeItem) -> None:
    replicas = [start_replica(), start_replica()]
    client = RewardClient([replica.address for replica in replicas], deadline_seconds=30)

    async def ask(number: int) -> str:
        await asyncio.sleep(number / 200)
        items = [make_item(f"Answer: {number}", id=f"{number}/{i}") for i in range(16)] + [
            make_item("sleep 0.05", data_source="naughty")
        ]
        verdicts = await client.score(items)
        assert [verdict.kind for verdict in verdicts] == [VerdictKind.SCORED] * 17
        return verdicts[0].extracted

    asked = [asyncio.ensure_future(ask(number)) for number in range(60)]
    await asyncio.sleep(0.2)
    replicas[0].kill()
    assert await asyncio.gather(*asked) == [str(number) for number in range(60)]
    await client.close()


async def test_a_replica_that_hangs_costs_its_callers_their_patience_once_and_not_their_deadline(
    start_replica: Start, make_item: MakeItem
) -> None:
    replicas = [start_replica(), start_replica()]
    client = RewardClient([replica.address for replica in replicas], deadline_seconds=60, patience_seconds=0.5)
    await asyncio.gather(*(client.score([make_item("Answer: 34")]) for _ in range(4)))  # both are connected
    replicas[0].process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    for _ in range(3):
        answers = await asyncio.gather(*(client.score([make_item("Answer: 34", id=str(i))]) for i in range(6)))
        assert [verdicts[0].score for verdicts in answers] == [1.0] * 6
    assert time.monotonic() - begun < 20, "gRPC's own pings take a minute to find out"
    replicas[0].process.send_signal(signal.SIGCONT)
    replicas[1].kill()
    assert (await client.score([make_item("Answer: 34")]))[0].score == 1.0, "a replica that goes on is used again"
    await client.close()


async def test_slow_checks_are_waited_for_beyond_the_patience(start_replica: Start, make_item: MakeItem) -> None:
    replicas = [start_replica(SLUICE_REWARD_TIMEOUT_SECONDS="5") for _ in range(2)]
    client = RewardClient([replica.address for replica in replicas], deadline_seconds=60, patience_seconds=0.2)
    again: list[int] = []
    client.count_retry = lambda: again.append(1)
    verdicts = await client.score([make_item("sleep 1.2", data_source="naughty")])
    assert (verdicts[0].kind, sum(again)) == (VerdictKind.SCORED, 1)
    await client.close()


async def test_a_replica_that_comes_back_is_used_again(start_replica: Start, make_item: MakeItem) -> None:
    first = start_replica()
    client = RewardClient([first.address], deadline_seconds=20)
    assert (await client.score([make_item("Answer: 34")]))[0].score == 1.0
    first.kill()
    waiting = asyncio.ensure_future(client.score([make_item("Answer: 34")]))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await asyncio.to_thread(start_replica, SLUICE_REWARD_BIND=first.address)
    assert (await waiting)[0].score == 1.0
    await client.close()


async def test_when_no_replica_answers_the_error_names_address_deadline_and_knob(make_item: MakeItem) -> None:
    client = RewardClient(["127.0.0.1:1"], deadline_seconds=1, deadline_knob="SLUICE_SCORE_SECONDS")
    begun = time.monotonic()
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1: UNAVAILABLE.* 1 s \(SLUICE_SCORE_SECONDS\)"):
        await client.score([make_item("x")])
    assert time.monotonic() - begun < 3
    await client.close()
    with pytest.raises(ConfigError, match="no address"):
        RewardClient([], deadline_seconds=1)


async def test_a_callers_deadline_ends_its_call_and_the_service_goes_on(
    start_replica: Start, make_item: MakeItem
) -> None:
    replica = start_replica(SLUICE_REWARD_TIMEOUT_SECONDS="30")
    async with grpc.aio.insecure_channel(replica.address) as channel:
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Score(encode_request([make_item("spin", data_source="naughty")]), timeout=0.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        answer = await stub.Score(encode_request([make_item("Answer: 34")]), timeout=5)
        assert answer.verdicts[0].score == 1.0


async def test_health_reflection_and_the_list_of_verifiers_tell_what_is_served(start_replica: Start) -> None:
    replica = start_replica(SLUICE_REWARD_ROUTES="sums*=exact")
    async with grpc.aio.insecure_channel(replica.address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for name in ("", "sluice.wire.v1.RewardService"):
            status = await check(health_pb2.HealthCheckRequest(service=name))
            assert status.status == health_pb2.HealthCheckResponse.SERVING
        listed = await reward_pb2_grpc.RewardServiceStub(channel).ListVerifiers(reward_pb2.ListVerifiersRequest())
    sources = {verifier.name: list(verifier.data_sources) for verifier in listed.verifiers}
    assert sources["exact"] == ["exact", "sums*"]
    assert sources["math_dapo"] == ["aime*", "math_dapo", "math_dapo_reasoning"]
    assert re.fullmatch(r"graded@[0-9a-f]{8}", next(v.label for v in listed.verifiers if v.name == "graded"))
    assert listed.timeout_seconds == 1.0
    with grpc.insecure_channel(replica.address) as blocking:
        assert "sluice.wire.v1.RewardService" in ProtoReflectionDescriptorDatabase(blocking).get_services()


async def test_metrics_count_verdicts_by_kind_and_lost_workers(start_replica: Start, make_item: MakeItem) -> None:
    replica = start_replica()
    client = RewardClient([replica.address], deadline_seconds=20)
    await client.score(
        [make_item("Answer: 34"), make_item("hang", data_source="naughty"), make_item("", data_source="?")]
    )
    await client.close()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{replica.metrics_port}", trust_env=False) as http:
        page = (await http.get("/metrics")).text
        ready = await http.get("/readyz")
    for line in (
        'sluice_reward_verdicts_total{kind="scored",verifier="math_dapo"} 1.0',
        'sluice_reward_verdicts_total{kind="timeout",verifier="naughty"} 1.0',
        'sluice_reward_verdicts_total{kind="error",verifier="unknown"} 1.0',
        'sluice_reward_workers_lost_total{reason="timeout"} 1.0',
        'sluice_reward_requests_total{code="OK"} 1.0',
        "sluice_reward_pending_items 0.0",
    ):
        assert line in page.splitlines()
    assert ready.status_code == 200


async def test_sigterm_lets_open_calls_finish_and_leaves_no_process(start_replica: Start, make_item: MakeItem) -> None:
    replica = start_replica()
    workers = replica.worker_pids()
    client = RewardClient([replica.address], deadline_seconds=10)
    open_call = asyncio.ensure_future(client.score([make_item("sleep 0.6", data_source="naughty")]))
    await asyncio.sleep(0.2)
    status = await asyncio.to_thread(replica.stop)
    assert (await open_call)[0].score == 1.0
    assert status == 0
    assert workers
    assert not any(_lives(pid) for pid in workers)
    await client.close()


async def test_workers_die_with_a_killed_service_even_while_they_hang(
    start_replica: Start, make_item: MakeItem
) -> None:
    replica = start_replica(SLUICE_REWARD_TIMEOUT_SECONDS="60")
    client = RewardClient([replica.address], deadline_seconds=60)
    hanging = asyncio.ensure_future(client.score([make_item("hang", data_source="naughty")]))
    await asyncio.sleep(0.3)
    workers = replica.worker_pids()
    replica.kill()
    hanging.cancel()
    assert workers
    deadline = time.monotonic() + 5
    while any(_lives(pid) for pid in workers):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await client.close()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SLUICE_REWARD_VERIFIERS", "mine=nowhere:f", "'mine=nowhere:f' cannot be imported"),
        ("SLUICE_REWARD_BIND", "192.0.2.1:1", "SLUICE_REWARD_BIND=192.0.2.1:1"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_status_2(name: str, value: str, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.reward"],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def _lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
