"""Whatever is sent, the API answers as its OpenAPI document says, and stores only what was really said."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.config import load_run_spec
from tests.api.conftest import CONFIGS
from tests.api.run_shelf import RunShelf, ThreadServer

SPEC: dict[str, Any] = load_run_spec(CONFIGS / "demo.toml").model_dump(mode="json")
PATHS = [(s, k) for s, values in SPEC.items() if isinstance(values, dict) for k in values] + [(s,) for s in SPEC]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
TEXT = st.text(min_size=1, max_size=30)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with ThreadServer(RunShelf()) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        yield client


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_a_spec_with_any_value_anywhere_is_stored_as_sent_or_refused_by_name(
    http: httpx.Client, path: tuple[str, ...], value: Any
) -> None:
    fields = copy.deepcopy(SPEC)
    _put(fields, path, value)
    answer = http.post("/v1/runs", json=fields)
    if answer.status_code == 201:
        assert _holds(_get(answer.json()["spec"], path), value)
    else:
        assert answer.status_code == 422, answer.text
        assert answer.json()["detail"] and answer.headers["content-type"] == "application/problem+json"


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_answered_with_a_documented_status(http: httpx.Client, body: bytes) -> None:
    assert http.post("/v1/runs", content=body).status_code in (400, 422)


@settings(max_examples=100, deadline=None)
@given(route=st.sampled_from(["/v1/runs/{run_id}", "/v1/runs/{run_id}/groups/{n}"]), data=st.data())
def test_any_path_is_answered_with_a_documented_problem(http: httpx.Client, route: str, data: st.DataObject) -> None:
    path = route
    for name in ("{run_id}", "{n}"):
        path = path.replace(name, quote(data.draw(TEXT), safe=""))
    answer = http.get(path)
    assert answer.status_code in (404, 405, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@settings(max_examples=60, deadline=None)
@given(limit=st.integers() | TEXT, after=st.integers() | TEXT)
def test_any_page_is_answered_with_a_documented_status(http: httpx.Client, limit: object, after: object) -> None:
    answer = http.get("/v1/runs/absent/groups", params={"limit": str(limit), "after": str(after)})
    assert answer.status_code in (404, 422), answer.text


def test_every_answer_of_every_route_is_in_the_openapi_document(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            statuses = set(operation["responses"])
            assert operation["summary"] and operation["description"], (method, path)
            if path.startswith("/v1"):
                assert {"401", "503"} <= statuses, (method, path)
            if "{run_id}" in path:
                assert {"404", "422"} <= statuses, (method, path)
            if method == "post":
                assert {"400", "409", "422"} <= statuses, (method, path)
    body = document["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/RunSpec"}
    fields = document["components"]["schemas"]["RunSpec"]
    assert fields["additionalProperties"] is False and "trainer" in fields["required"]


def test_every_reference_in_the_openapi_document_leads_somewhere(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    names = {ref.rsplit("/", 1)[1] for ref in _references(document)}
    assert names and names <= set(document["components"]["schemas"])


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _put(fields: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        fields = fields[part]
    fields[path[-1]] = value


def _get(fields: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        fields = fields[part]
    return fields


def _holds(stored: Any, sent: Any) -> bool:
    """Whether what was sent is there unchanged; a section may have defaults besides."""
    if isinstance(sent, dict):
        return all(_holds(stored[key], value) for key, value in sent.items())
    return bool(stored == sent)
