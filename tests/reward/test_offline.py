"""`python -m services.reward verify FILE --verifier NAME`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = [
    '{"response": "so\\nAnswer: 34", "ground_truth": "34"}',
    '{"response": "34", "ground_truth": "34", "prompt": "why", "data_source": "x", "extra_info": {"a": 1}}',
    '{"response": "34"}',
    '{"response": 34, "ground_truth": "34"}',
    '{"response": "34", "ground_truth": " "}',
    "[1]",
    "{",
    "",
    '{"response": "Answer: \\ud83d", "ground_truth": "34"}',
]


def verify(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.reward", "verify", *arguments],
        env=os.environ | {"SLUICE_REWARD_WORKERS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_row_gets_a_line_and_each_bad_row_a_line_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes("\n".join(ROWS).encode() + b'\n{"response": "\xff"}\n')
    done = verify(str(file), "--verifier", "math_dapo")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["row"], line["kind"], line["score"]) for line in lines] == [
        (1, "scored", 1.0),
        (2, "scored", -1.0),
        (3, "error", None),
        (4, "error", None),
        (5, "error", None),
        (6, "error", None),
        (7, "error", None),
        (9, "scored", -1.0),
        (10, "error", None),
    ]
    assert (lines[0]["acc"], lines[0]["extracted"]) == (1.0, "34")
    assert done.returncode == 1
    complaints = done.stderr.splitlines()
    assert complaints[:4] == [
        "row 3: ground_truth is missing",
        "row 4: response is of type int; it must be a string",
        "row 5: ground_truth is empty",
        "row 6: of type list; it must be an object",
    ]
    assert complaints[4].startswith("row 7: not JSON")
    assert complaints[5:] == ["row 10: not UTF-8 at byte 14"]


def test_a_users_verifier_judges_a_file_too_and_the_result_goes_where_asked(tmp_path: Path, naughty_path: None) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "verdicts.jsonl"
    rows = [{"response": text, "ground_truth": "34"} for text in ("34", "raise", "hang", "7")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = verify(
        *(str(file), "--verifier", "naughty", "--out", str(out)),
        SLUICE_REWARD_VERIFIERS="naughty=naughty:obey",
        SLUICE_REWARD_TIMEOUT_SECONDS="0.5",
    )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["scored", "error", "timeout", "scored"]
    assert [line["acc"] for line in lines] == [1.0, None, None, 0.0]
    assert all(line["verifier"].startswith("naughty@") for line in lines)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{file}", "--verifier", "guess"], "--verifier 'guess' is none of: exact, gsm8k, math, math_dapo"),
        (["{file}.gone", "--verifier", "exact"], "No such file"),
        (["{file}", "--verifier", "exact", "--out", "{file}/x"], "--out"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_status_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(ROWS[0])
    done = verify(*(argument.format(file=file) for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_has_enough_ends_the_judging_quietly(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text((ROWS[0] + "\n") * 3000)
    command = [sys.executable, "-m", "services.reward", "verify", str(file), "--verifier", "exact"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["row"] == 1
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0
