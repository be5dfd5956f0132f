"""`code`: the response holds a Python program, the ground truth its tests. Runs in a kernel sandbox or not at all.

The program is the last fenced block of the response, or all of it when it has none. The ground truth is JSON with
`inputs` and `outputs`, lists of the same length: text for standard input, and the standard output that is expected,
white space at the ends of lines aside. With `fn_name` too, inputs are lists of arguments and outputs are results,
compared by equality. Anything else is Python that uses the program's names and raises when a test fails, such as lines
of `assert`. All tests must pass. Tests with inputs and outputs cannot be talked to from inside; asserts run beside the
program, in the same interpreter, where one that sets out to cheat can.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from dataclasses import dataclass

from services.reward.verifiers.exact import strip_end
from services.reward.verifiers.outcome import Outcome
from services.reward.verifiers.sandbox import run
from sluice.types import NO_ANSWER, ScoreItem

SANDBOX_VARIABLE = "SLUICE_REWARD_CODE_PROGRAM"
"""Where a worker finds the path of the bubblewrap program that the service has tried at its start."""
TEST_SECONDS = 4.0
"""For all the tests of one program."""

_FENCED = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Tests:
    """Either `asserts`, or pairs of input and output; with `function` these are arguments and results."""

    asserts: str = ""
    pairs: tuple[tuple[object, object], ...] = ()
    function: str = ""


def verify(item: ScoreItem) -> Outcome:
    """1 when the program passes every test of the ground truth, else 0. A program that takes too long has failed.

    Raises:
        ValueError: the ground truth is no tests.
        RuntimeError: this process was not given a sandbox.
    """
    tests = read_tests(item.ground_truth)
    bwrap = os.environ.get(SANDBOX_VARIABLE)
    if not bwrap:
        raise RuntimeError("`code` has no sandbox in this process; knob: SLUICE_REWARD_CODE")
    blocks = _FENCED.findall(item.response)
    program = (blocks[-1] if blocks else strip_end(item.response)).strip()
    if not program:
        return Outcome(acc=0.0, score=0.0, extracted=NO_ANSWER)
    passed = float(_passes(bwrap, program, tests))
    return Outcome(acc=passed, score=passed, extracted=program)


def read_tests(truth: str) -> Tests:
    """The tests of a ground truth.

    Raises:
        ValueError: it is empty, is JSON of another form, or is not Python.
    """
    if not truth.strip():
        raise ValueError("ground truth has no tests: every program would pass")
    try:
        read = json.loads(truth)
    except ValueError:
        read = None
    if isinstance(read, dict):
        return _pairs(read)
    try:
        compile(truth, "tests", "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"ground truth is neither JSON tests nor Python: {error}") from None
    return Tests(asserts=truth)


def _pairs(read: dict[str, object]) -> Tests:
    inputs, outputs = read.get("inputs"), read.get("outputs")
    if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs) > 0):
        raise ValueError("ground truth needs inputs and outputs, lists of the same length above 0")
    return Tests(pairs=tuple(zip(inputs, outputs, strict=True)), function=str(read.get("fn_name") or ""))


def _passes(bwrap: str, program: str, tests: Tests) -> bool:
    deadline = time.monotonic() + TEST_SECONDS
    if tests.asserts:
        return _passes_asserts(bwrap, program, tests.asserts)
    for given, expected in tests.pairs:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if tests.function:
            found = _result(bwrap, program, tests.function, given, left)
            same = found == [json.loads(json.dumps(expected))]
        else:
            finished = run(bwrap, program, str(given), left)
            same = finished.status == 0 and _lines(finished.output) == _lines(str(expected))
        if not same:
            return False
    return True


def _passes_asserts(bwrap: str, program: str, asserts: str) -> bool:
    """The mark is handed in behind the tests and printed after them: a program that ends early never prints it."""
    mark = secrets.token_hex(16)
    source = f"{program}\n\n{asserts}\n\nimport sys as _sys\nprint('\\n' + _sys.stdin.readline().strip())\n"
    finished = run(bwrap, source, mark + "\n", TEST_SECONDS)
    return finished.status == 0 and finished.output.rstrip().endswith(mark)


def _result(bwrap: str, program: str, function: str, arguments: object, seconds: float) -> list[object]:
    """What the function returns, as JSON reads it, in a list; an empty list when it does not return."""
    mark = secrets.token_hex(16)
    source = (
        f"{program}\n\nimport json as _json, sys as _sys\n_given = _json.loads(_sys.stdin.readline())\n"
        f"_found = (Solution().{function} if 'Solution' in globals() else {function})(*_given)\n"
        f"print('\\n' + _sys.stdin.readline().strip() + _json.dumps(_found))\n"
    )
    given = arguments if isinstance(arguments, list) else [arguments]
    finished = run(bwrap, source, json.dumps(given) + "\n" + mark + "\n", seconds)
    last = finished.output.rstrip().rpartition("\n")[2]
    if finished.status != 0 or not last.startswith(mark):
        return []
    return [json.loads(last.removeprefix(mark))]


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
