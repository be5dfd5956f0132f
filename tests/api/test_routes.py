"""What a caller of the REST API can rely on, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from services.coordinator.api.access import check_host
from services.coordinator.api.body import MAX_BODY_BYTES
from sluice.config import RunSpec
from sluice.errors import ConfigError
from sluice.types import RunState
from sluice.views import RunView
from tests.api.run_shelf import RunShelf, serving


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer, which must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status and document["detail"] and "\n" not in document["detail"]
    return document


async def create(http: httpx.AsyncClient, spec: RunSpec, **headers: str) -> dict[str, Any]:
    answer = await http.post("/v1/runs", content=spec.canonical_json, headers=headers)
    assert answer.status_code == 201, answer.text
    run: dict[str, Any] = answer.json()
    return run


async def test_a_created_run_is_queued_and_found_again(http: httpx.AsyncClient, spec: RunSpec) -> None:
    answer = await http.post("/v1/runs", content=spec.canonical_json)
    run = answer.json()
    assert answer.headers["location"] == f"/v1/runs/{run['id']}"
    assert (run["state"], run["config_hash"]) == ("queued", spec.config_hash)
    assert (await http.get(answer.headers["location"])).json() == run
    assert [r["id"] for r in (await http.get("/v1/runs")).json()] == [run["id"]]


async def test_the_same_key_creates_one_run_and_refuses_another_spec(http: httpx.AsyncClient, spec: RunSpec) -> None:
    first, again = [await create(http, spec, **{"Idempotency-Key": "once"}) for _ in range(2)]
    assert first == again
    other = spec.model_copy(update={"name": "other"})
    answer = await http.post("/v1/runs", content=other.canonical_json, headers={"Idempotency-Key": "once"})
    assert problem(answer, 409)["field"] == "Idempotency-Key"


async def test_a_wrong_field_is_named_with_its_value_and_limit(http: httpx.AsyncClient, spec: RunSpec) -> None:
    fields = spec.model_dump(mode="json")
    fields["optim"]["lr"] = -1
    document = problem(await http.post("/v1/runs", json=fields), 422)
    assert (document["field"], document["value"], document["knob"]) == ("optim.lr", -1, "optim.lr")
    assert document["limit"] == "must be above 0" and document["detail"] == "optim.lr: must be above 0"


async def test_an_unknown_field_is_refused_by_name(http: httpx.AsyncClient, spec: RunSpec) -> None:
    fields = spec.model_dump(mode="json")
    fields["trainer"]["steps"] = 3
    document = problem(await http.post("/v1/runs", json=fields), 422)
    assert document["field"] == "trainer.steps" and "no such field" in document["detail"]


async def test_numbers_written_as_text_are_not_guessed_at(http: httpx.AsyncClient, spec: RunSpec) -> None:
    fields = spec.model_dump(mode="json")
    fields["trainer"]["total_steps"] = "20"
    fields["data"]["train_files"] = "rows.parquet"
    document = problem(await http.post("/v1/runs", json=fields), 422)
    assert document["detail"] == "data.train_files: must be a list; trainer.total_steps: must be a whole number"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_a_number_that_is_none_is_refused(http: httpx.AsyncClient, spec: RunSpec, number: str) -> None:
    body = spec.canonical_json.replace('"lr":0.0005', f'"lr":{number}')
    assert number in body
    answer = await http.post("/v1/runs", content=body)
    problem(answer, answer.status_code)
    assert answer.status_code in (400, 422)


async def test_a_fault_that_only_the_deployment_sees_is_the_callers_too(http: httpx.AsyncClient, spec: RunSpec) -> None:
    fields = spec.model_dump(mode="json")
    fields["model"]["path"] = "nowhere"
    assert "nowhere" in problem(await http.post("/v1/runs", json=fields), 422)["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"name": }'])
async def test_a_body_that_is_not_json_is_a_400(http: httpx.AsyncClient, body: bytes) -> None:
    assert problem(await http.post("/v1/runs", content=body), 400)["field"] == "body"


async def test_a_body_over_the_size_limit_is_refused(http: httpx.AsyncClient) -> None:
    document = problem(await http.post("/v1/runs", content=b" " * (MAX_BODY_BYTES + 1)), 413)
    assert document["limit"] == MAX_BODY_BYTES


@pytest.mark.parametrize("path", ["", "/steps", "/groups", "/groups/0", "/events", "/versions", "/checkpoints"])
async def test_an_unknown_run_is_a_404_on_every_route(http: httpx.AsyncClient, path: str) -> None:
    assert problem(await http.get(f"/v1/runs/absent{path}"), 404)["value"] == "absent"


async def test_a_path_that_does_not_exist_is_a_problem_document_too(http: httpx.AsyncClient) -> None:
    problem(await http.get("/v2/anything"), 404)
    problem(await http.delete("/v1/runs"), 405)


async def test_an_id_that_could_never_be_one_is_refused(http: httpx.AsyncClient) -> None:
    assert problem(await http.get("/v1/runs/A.*"), 422)["field"] == "run_id"


async def test_a_group_that_was_never_issued_is_a_404_with_the_limit(http: httpx.AsyncClient, spec: RunSpec) -> None:
    run = await create(http, spec)
    assert problem(await http.get(f"/v1/runs/{run['id']}/groups/9"), 404)["limit"] == 4
    assert (await http.get(f"/v1/runs/{run['id']}/groups/4")).json()["n"] == 4


async def test_lists_come_in_pages(http: httpx.AsyncClient, spec: RunSpec) -> None:
    run = await create(http, spec)
    answer = await http.get(f"/v1/runs/{run['id']}/groups", params={"after": 1, "limit": 2})
    assert [group["n"] for group in answer.json()] == [2, 3]
    assert problem(await http.get(f"/v1/runs/{run['id']}/groups", params={"limit": 0}), 422)["field"] == "limit"


async def test_pause_resume_and_stop_carry_their_reason(
    http: httpx.AsyncClient, spec: RunSpec, shelf: RunShelf
) -> None:
    run = await create(http, spec)
    path = f"/v1/runs/{run['id']}"
    assert (await http.post(f"{path}/pause", json={"reason": "lunch"})).json()["state"] == "paused"
    assert (await http.post(f"{path}/resume")).json()["state"] == "running"
    assert (await http.post(f"{path}/stop", json={})).json()["state"] == "stopped"
    assert [(action, reason) for _, action, reason in shelf.controls] == [
        ("pause", "lunch"),
        ("resume", ""),
        ("stop", ""),
    ]
    assert problem(await http.post(f"{path}/pause"), 409)["value"] == "stopped"


@pytest.mark.parametrize("body", [{"reason": 3}, {"why": "lunch"}, {"reason": "x" * 501}, ["lunch"]])
async def test_a_control_body_with_anything_else_is_refused(http: httpx.AsyncClient, spec: RunSpec, body: Any) -> None:
    run = await create(http, spec)
    problem(await http.post(f"/v1/runs/{run['id']}/pause", json=body), 422)


async def test_a_control_body_that_is_not_json_is_a_400(http: httpx.AsyncClient, spec: RunSpec) -> None:
    run = await create(http, spec)
    headers = {"Content-Type": "application/json"}
    problem(await http.post(f"/v1/runs/{run['id']}/pause", content=b"{", headers=headers), 400)


async def test_what_is_away_is_a_503_that_says_when_to_ask_again(
    http: httpx.AsyncClient, spec: RunSpec, shelf: RunShelf
) -> None:
    run = await create(http, spec)
    shelf.away = True
    answer = await http.get(f"/v1/runs/{run['id']}")
    assert "SLUICE_NATS_DEADLINE_SECONDS" in problem(answer, 503)["detail"]
    assert answer.headers["retry-after"] == "2"


async def test_a_fault_of_ours_is_a_500_without_a_traceback(
    http: httpx.AsyncClient, shelf: RunShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(RunShelf, "workers")
    document = problem(await http.get("/v1/workers"), 500)
    assert "Traceback" not in document["detail"]


async def test_events_come_as_they_happen_and_go_on_after_the_last_one_seen(
    http: httpx.AsyncClient, spec: RunSpec, shelf: RunShelf
) -> None:
    run = await create(http, spec)
    await shelf.emit(run["id"], "worker_joined", worker="rollout-0")
    seen: list[str] = []
    async with asyncio.timeout(10), http.stream("GET", f"/v1/runs/{run['id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            seen.append(line)
            if line == "id: 1":
                await shelf.emit(run["id"], "batch", step=0)
            if line == "id: 2":
                break
    assert "event: worker_joined" in seen and "event: batch" in seen
    shelf.change(run["id"], state=RunState.SUCCEEDED)
    rest = await http.get(f"/v1/runs/{run['id']}/events", headers={"Last-Event-ID": "1"})
    assert [line for line in rest.text.splitlines() if line.startswith("id:")] == ["id: 2"]


async def test_who_is_cut_off_by_a_coordinator_that_ends_is_told_to_ask_again_and_event_streams_end_in_order(
    spec: RunSpec, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(RunShelf):
        async def list(self) -> Sequence[RunView]:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    async with httpx.AsyncClient(trust_env=False) as client:
        async with serving(Hanging()) as url:
            run = (await client.post(f"{url}/v1/runs", content=spec.canonical_json)).json()
            addresses = (f"{url}/v1/runs", f"{url}/v1/runs/{run['id']}/events")
            cut_off = [asyncio.ensure_future(client.get(address)) for address in addresses]
            await asyncio.sleep(0.2)
        hung, stream = await asyncio.gather(*cut_off)
    assert "ask again" in problem(hung, 503)["detail"]
    assert stream.status_code == 200
    assert "Exception in ASGI application" not in caplog.text


async def test_an_event_id_that_is_no_number_is_refused_before_the_stream_begins(
    http: httpx.AsyncClient, spec: RunSpec
) -> None:
    run = await create(http, spec)
    answer = await http.get(f"/v1/runs/{run['id']}/events", headers={"Last-Event-ID": "yesterday"})
    assert problem(answer, 422)["field"] == "Last-Event-ID"


async def test_probes_say_who_is_waited_for(http: httpx.AsyncClient, shelf: RunShelf) -> None:
    assert (await http.get("/healthz")).text == "ok\n"
    assert (await http.get("/readyz")).text == "ready\n"
    shelf.waits_for, shelf.works = "NATS at nats://127.0.0.1:4222", False
    assert "nats://127.0.0.1:4222" in problem(await http.get("/readyz"), 503)["detail"]
    problem(await http.get("/healthz"), 503)


async def test_metrics_are_in_the_format_of_prometheus(http: httpx.AsyncClient) -> None:
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain") and "# TYPE" in answer.text


async def test_with_a_token_every_run_route_asks_for_it_and_probes_do_not(shelf: RunShelf) -> None:
    async with serving(shelf, token="secret") as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic c2VjcmV0"}):
            answer = await http.get("/v1/runs", headers=headers)
            assert problem(answer, 401)["knob"] == "SLUICE_API_TOKEN"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert (await http.get("/v1/runs", headers={"Authorization": "Bearer secret"})).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "coordinator"])
def test_without_a_token_only_this_machine_may_call(host: str) -> None:
    with pytest.raises(ConfigError, match=f"SLUICE_API_HOST={host}: without a token"):
        check_host(host, None)
    check_host(host, "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_the_loopback_address_needs_no_token(host: str) -> None:
    check_host(host, None)
