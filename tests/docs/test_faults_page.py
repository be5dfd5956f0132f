"""What the page on faults says was shown is shown by tests that are there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## What is killed, frozen or cut off, one at a time")[1].split("Seconds until")[0]
PARTS = ("rollout worker", "engine", "reward server", "coordinator", "trainer", "NATS", "Redis")
"""The rows of the contract's table."""


def test_every_test_that_the_page_names_is_there() -> None:
    written = "".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "tests").rglob("test_*.py")))
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", written, re.MULTILINE))
    named = set(re.findall(r"`(test_\w{20,})`", TABLE))
    assert len(named) > len(PARTS)
    assert named <= there


def test_every_row_of_the_contract_has_a_test() -> None:
    rows = [line.split("|")[1].strip() for line in TABLE.splitlines() if "`test_" in line and line.startswith("|")]
    assert set(PARTS) <= set(rows)
