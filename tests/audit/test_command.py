"""The command line: exit codes, the table for people and the JSON for machines."""

from __future__ import annotations

import json
import subprocess
import sys

from sluice.transport.nats import Bus
from sluice.types import Version
from tests.audit.world import World
from tests.servers import free_port

KEYS = {
    "issued",
    "live",
    "dropped",
    "kept",
    "trained",
    "trained_twice",
    "lost",
    "staleness_histogram",
    "staleness_violations",
    "capacity_violations",
    "findings",
    "clean",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluice.audit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_a_clean_run_ends_with_0_and_one_line_of_verdict(bus: Bus, nats_url: str) -> None:
    await World("run-a").play().write(bus)
    done = run("run-a", "--nats", nats_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith(
        "CLEAN: 20 issued = 12 trained once + 0 awaiting + 8 dropped + 0 live"
    )


async def test_json_has_every_count_and_a_broken_run_ends_with_1(bus: Bus, nats_url: str) -> None:
    world = World("run-a").play()
    at = next(i for i, r in enumerate(world.trainer) if isinstance(r, Version))
    world.trainer.insert(at, world.trainer[at])
    await world.write(bus)
    done = run("run-a", "--nats", nats_url, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report.keys() >= KEYS
    assert report["clean"] is False
    assert [f["kind"] for f in report["findings"]] == ["lineage"]
    table = run("run-a", "--nats", nats_url)
    assert table.returncode == 1
    assert table.stdout.splitlines()[-1] == "BROKEN: 1 findings (lineage)"


async def test_an_unknown_run_and_an_absent_server_end_with_2(bus: Bus, nats_url: str) -> None:
    await World("run-a").play().write(bus)
    unknown = run("run-b", "--nats", nats_url)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no run 'run-b'" in unknown.stderr
    absent = run("run-a", "--nats", f"nats://127.0.0.1:{free_port()}")
    assert absent.returncode == 2
    assert "no NATS server answers" in absent.stderr
    assert run().returncode == 2


def test_the_audit_shares_no_code_with_the_services_accounts() -> None:
    code = (
        "import ast, pathlib, sluice.audit\n"
        "for path in pathlib.Path(sluice.audit.__file__).parent.glob('*.py'):\n"
        "    for node in ast.walk(ast.parse(path.read_text())):\n"
        "        if isinstance(node, ast.ImportFrom): print(node.module)\n"
        "        if isinstance(node, ast.Import): [print(a.name) for a in node.names]\n"
    )
    imported = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    own = {m for m in imported if m.startswith(("sluice.", "services")) and not m.startswith("sluice.audit")}
    assert own == {
        "sluice.errors",
        "sluice.telemetry",
        "sluice.transport.log",
        "sluice.transport.nats",
        "sluice.wire",
        "sluice.wire.v1.ledger_pb2",
        "sluice.wire.v1.rollouts_pb2",
    }
