"""Hostile responses cost one limit and nothing else, and nothing of them ever runs as Python."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.reward.pool import Pool, PoolSettings
from services.reward.verifiers.evaluation import EvaluatedError, nothing_evaluated
from services.reward.verifiers.math import verify
from services.reward.worker import WorkerLimits
from sluice.types import ScoreItem, VerdictKind

LIMIT_SECONDS = 1.5
HOSTILE = {
    "huge power": "Answer: $9^{9^{9^{9}}}$",
    "huge power in words": "Answer: 9**9**9**9",
    "power of a variable": "Answer: $(x+1)^{100000} - x$",
    "factorial": "Answer: $(10^{9})!$",
    "factorial of a factorial": "Answer: $((99!)!)!$",
    "deep brackets": "Answer: " + "(" * 950 + "34" + ")" * 950,
    "deep braces": "\\boxed" + "{" * 5000 + "34" + "}" * 5000,
    "deep fractions": "Answer: " + "\\frac{1}{" * 150 + "2" + "}" * 150,
    "long sum": "Answer: " + "+".join(["x"] * 900),
    "a megabyte": "Answer: " + "3" * (1 << 20),
    "a megabyte of boxes": "\\boxed{3}" * 110_000,
    "a megabyte of dollars": "$" * (1 << 20),
    "a megabyte of markers": "Answer: " * 130_000,
    "spaces": "Answer:" + " " * (1 << 20) + "x",
    "spaces between boxes": "\\boxed{3}" + " $" * 4500 + "x\\boxed{4}",
    "formulas that never end": "answer is " + "\\(" * 4500,
    "a comma list": "Answer: " + "1," * 950,
    "pluses and minuses": "Answer: " + "\\pm " * 350,
    "null bytes": "Answer: \x0034\x00",
    "half a character": "Answer: 3\ud8004",
    "an integral": "Answer: $\\int_0^{10^{9}} \\sin(x^x) dx$",
    "a product": "Answer: $\\prod_{n=1}^{10^{12}} n$",
    "code": "Answer: __import__('os').system('touch {mark}')",
    "code in text": "Answer: \\text{{__import__('os').system('touch {mark}')}}",
    "code as a symbol": "Answer: $x_{{exec(open('{mark}','w'))}}$",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Pool]:
    pool = Pool(PoolSettings(2, LIMIT_SECONDS, 10_000, WorkerLimits(1 << 30, 60.0, ())))
    await pool.start()
    await pool.score([("math", ScoreItem("0", "math", "p", "Answer: $x$", "x", "{}", 1))] * 2)
    yield pool
    await pool.close()


def item(response: str, truth: str = "34") -> ScoreItem:
    return ScoreItem("1", "any", "p", response, truth, "{}", 1)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_response_costs_at_most_one_limit_and_is_never_right(
    pool: Pool, name: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    response = HOSTILE[name].replace("{mark}", str(mark)) if "{mark}" in HOSTILE[name] else HOSTILE[name]
    begun = time.monotonic()
    bad, good = await pool.score([("math", item(response)), ("math", item("Answer: 34"))])
    assert time.monotonic() - begun < 3 * LIMIT_SECONDS
    assert good.acc == 1.0
    right = 1.0 if name == "null bytes" else 0.0
    assert bad.acc == right or bad.kind is VerdictKind.TIMEOUT
    assert not mark.exists()


async def test_catastrophic_patterns_hold_up_nobody(pool: Pool) -> None:
    bad = ("regex", item("a" * 40, "(a+)+b"))
    good = [("math", item(f"Answer: ${number}$", str(number))) for number in range(40)]
    begun = time.monotonic()
    verdicts = await pool.score([bad, *good[:20], bad, *good[20:], bad])
    assert time.monotonic() - begun < 6 * LIMIT_SECONDS
    assert [verdict.kind for verdict in verdicts].count(VerdictKind.TIMEOUT) == 3
    assert sum(verdict.acc or 0.0 for verdict in verdicts) == 40


async def test_a_verifier_that_takes_seconds_to_import_is_back_at_once_after_a_kill(pool: Pool) -> None:
    await pool.score([("regex", item("a" * 40, "(a+)+b"))] * 4)
    begun = time.monotonic()
    verdicts = await pool.score([("math", item("Answer: $\\frac12$", "0.5"))] * 4)
    assert [verdict.acc for verdict in verdicts] == [1.0] * 4
    assert time.monotonic() - begun < 1.0


@pytest.mark.parametrize(
    "attempt", ["eval('1')", "exec('1')", "__import__('sympy').sympify('1+x')", "__import__('sympy').Number('34')"]
)
async def test_the_guard_refuses_every_way_to_run_text_as_python(attempt: str) -> None:
    code = compile(attempt, "attempt", "eval")
    with pytest.raises(EvaluatedError), nothing_evaluated():
        eval(code)


async def test_a_refusal_that_a_library_swallows_is_an_error_all_the_same() -> None:
    with pytest.raises(EvaluatedError), nothing_evaluated(), contextlib.suppress(EvaluatedError):
        exec("1")


async def test_judging_expressions_runs_nothing_but_the_code_of_libraries(tmp_path: Path) -> None:
    seen: list[str] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "compile" and watching and isinstance(arguments[0], str):
            seen.append(arguments[0])

    watching = True
    sys.addaudithook(hook)
    mark = tmp_path / "mark"
    for answer in (f"open('{mark}','w')", "34", "x^2+1", "1.5\\%", "\\operatorname{exec}(x)", "[1,2]\\cup[3,4]", "x<3"):
        verify(item(f"Answer: ${answer}$", "x^2+2x+1"))
    watching = False
    assert not any("open(" in text or "x^2" in text or "34" in text for text in seen), seen
    assert not mark.exists()
