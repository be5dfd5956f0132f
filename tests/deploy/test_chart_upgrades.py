"""What `helm upgrade` refuses because of what the cluster already runs, which it asks the cluster for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.deploy.charts import CHART, NAMESPACE, HelmError, run_helm

APPS = {"groupVersion": "apps/v1", "version": "v1"}


def answers(servers: int) -> dict[str, Any]:
    """What Helm asks a cluster with a release of so many NATS servers, by path; nothing else is there."""
    return {
        "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [APPS], "preferredVersion": APPS}]},
        "/api/v1": resources("v1", {"name": "secrets", "kind": "Secret"}),
        "/apis/apps/v1": resources("apps/v1", {"name": "statefulsets", "kind": "StatefulSet"}),
        f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/sluice-nats": {
            "kind": "StatefulSet",
            "apiVersion": "apps/v1",
            "metadata": {"name": "sluice-nats"},
            "spec": {"replicas": servers},
        },
    }


def resources(version: str, resource: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": "APIResourceList",
        "groupVersion": version,
        "resources": [{"namespaced": True, "verbs": ["get"], **resource}],
    }


@contextmanager
def cluster(servers: int) -> Iterator[str]:
    """URL of an API that answers Helm's questions as a cluster would that runs so many NATS servers."""
    known = answers(servers)

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(known.get(path, missing)).encode()
            self.send_response(200 if path in known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test's output is for faults."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def complaint(running: int, wanted: int) -> str:
    """What Helm says of an upgrade. It always says something: the API here lists no kinds that it could install."""
    words = ("--namespace", NAMESPACE, "--dry-run=server", "--disable-openapi-validation")
    with cluster(running) as url, pytest.raises(HelmError) as said:
        run_helm("template", "sluice", str(CHART), *words, "--kube-apiserver", url, f"--set=nats.replicas={wanted}")
    return str(said.value)


@pytest.mark.parametrize(("running", "wanted"), [(1, 3), (3, 1), (5, 1)])
def test_an_upgrade_that_would_delete_every_stream_is_refused(running: int, wanted: int) -> None:
    said = complaint(running, wanted)
    assert f"nats.replicas={wanted}: this release runs {running}, and a change from or to one server" in said


@pytest.mark.parametrize(("running", "wanted"), [(1, 1), (3, 3), (3, 5)])
def test_an_upgrade_that_keeps_the_streams_is_taken(running: int, wanted: int) -> None:
    said = complaint(running, wanted)
    assert "nats.replicas" not in said
    assert 'resource mapping not found for name: "sluice-nats"' in said  # past the checks, on its way to the cluster
