"""`code` runs programs in a kernel sandbox, and not at all without one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.reward.config import RewardSettings
from services.reward.pool import Pool
from services.reward.verifiers import code
from services.reward.verifiers.registry import load_verifiers
from services.reward.verifiers.sandbox import require_sandbox, run
from sluice.errors import ConfigError
from sluice.types import ScoreItem, VerdictKind

MakeItem = Callable[..., ScoreItem]
SUMS = json.dumps({"inputs": ["1 2\n", "3 4"], "outputs": ["3\n", "7"]})
ADD = json.dumps({"fn_name": "add", "inputs": [[1, 2], [[3], [4]]], "outputs": [3, [3, 4]]})
ASSERTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0"


@pytest.fixture(scope="module")
def bwrap() -> str:
    return require_sandbox("bubblewrap")


@pytest.fixture
def sandbox(bwrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(code.SANDBOX_VARIABLE, bwrap)


@pytest.mark.parametrize(
    ("program", "tests", "passed"),
    [
        ("def add(a, b):\n    return a + b", ASSERTS, 1.0),
        ("def add(a, b):\n    return a - b", ASSERTS, 0.0),
        ("def add(a, b):\n    return a + b", ADD, 1.0),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", ADD, 1.0),
        ("def add(a, b):\n    return 3", ADD, 0.0),
        ("print(sum(map(int, input().split())))", SUMS, 1.0),
        ("print(3)", SUMS, 0.0),
        ("import sys\nsys.exit(0)", ASSERTS, 0.0),
        ("import os\nos._exit(0)", ASSERTS, 0.0),
        ("raise ValueError", SUMS, 0.0),
        ("def add(", ASSERTS, 0.0),
    ],
)
def test_a_program_is_right_when_it_passes_every_test(
    make_item: MakeItem, sandbox: None, program: str, tests: str, passed: float
) -> None:
    outcome = code.verify(make_item(f"I would write\n```python\n{program}\n```\nand be done.", tests))
    assert (outcome.acc, outcome.extracted) == (passed, program)


@pytest.mark.parametrize(
    ("attack", "answer"),
    [
        ("import os; print(sorted(os.listdir('/tmp')), os.path.exists('{mark}'))", "[] False"),
        ("import os; print(os.getuid(), os.getpid() < 5, len(os.environ) < 6)", "65534 True True"),
        ("import socket; print(socket.if_nameindex())", "[(1, 'lo')]"),
        ("import os; os.fork()", "PermissionError"),
        ("import subprocess; subprocess.run(['ls'])", "PermissionError"),
        ("import threading as t; a = t.Thread(target=print, args=('thread',)); a.start(); a.join()", "thread"),
        ("open('/usr/mark', 'w')", "Read-only file system"),
        ("x = bytearray(4 << 30)", "MemoryError"),
    ],
)
def test_the_sandbox_shows_no_files_no_network_and_no_other_process(
    bwrap: str, tmp_path: Path, attack: str, answer: str
) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    assert answer in run(bwrap, attack.replace("{mark}", str(mark)), "", 10).output


def test_endless_programs_and_endless_output_end_with_their_limits(bwrap: str) -> None:
    assert run(bwrap, "while True: pass", "", 0.5).status is None
    flood = run(bwrap, "while True: print('x' * 1000)", "", 10)
    assert flood.status not in (None, 0)
    assert len(flood.output) <= 1 << 20


def test_without_the_deployments_word_there_is_no_code(make_item: MakeItem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(code.SANDBOX_VARIABLE, raising=False)
    assert "code" not in load_verifiers(())
    with pytest.raises(RuntimeError, match="SLUICE_REWARD_CODE"):
        code.verify(make_item("print(1)", ASSERTS))


def test_the_service_does_not_start_when_its_sandbox_is_missing_or_confines_nothing(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    for setting, message in ((str(tmp_path / "gone"), "no bubblewrap program"), (str(fake), "does not confine")):
        with pytest.raises(ConfigError, match=message):
            require_sandbox(setting)
    done = subprocess.run(
        [sys.executable, "-m", "services.reward"],
        env=os.environ | {"SLUICE_REWARD_CODE": str(fake)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"SLUICE_REWARD_CODE={fake}" in done.stderr


@pytest.mark.parametrize("truth", ["", "assert (", '{"inputs": ["1"]}', '{"inputs": [], "outputs": []}'])
def test_a_ground_truth_that_tests_nothing_is_refused(truth: str) -> None:
    with pytest.raises(ValueError, match="ground truth"):
        code.read_tests(truth)


async def test_the_pool_judges_code_where_it_is_enabled(make_item: MakeItem, bwrap: str) -> None:
    settings = RewardSettings.from_environment({"SLUICE_REWARD_CODE": bwrap, "SLUICE_REWARD_WORKERS": "1"})
    pool = Pool(await asyncio.to_thread(lambda: settings.pool))
    await pool.start()
    right = make_item("```python\nprint(sum(map(int, input().split())))\n```", SUMS)
    verdicts = await pool.score([("code", right), ("code", make_item("```python\nprint(1)\n```", SUMS))])
    await pool.close()
    assert [(verdict.kind, verdict.acc) for verdict in verdicts] == [(VerdictKind.SCORED, 1.0), (VerdictKind.SCORED, 0)]
    assert verdicts[0].verifier.startswith("code@")
