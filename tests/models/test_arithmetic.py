"""The arithmetic data sets."""

import json
from pathlib import Path

import pytest

from sluice.models.arithmetic import demo_rows, tiny_rows, write_rows

DATA = Path(__file__).parents[2] / "configs" / "data"


def test_the_tiny_set_asks_each_pair_of_digits_once() -> None:
    rows = tiny_rows()
    assert len({row["prompt"] for row in rows}) == 100
    for row in rows:
        a, b = row["prompt"].removesuffix("=").split("+")
        assert row["reward_model"]["ground_truth"] == str(int(a) + int(b))


def test_the_demo_set_has_every_sum_and_product_after_one_worked_example() -> None:
    rows = demo_rows()
    assert len({row["prompt"] for row in rows}) == 9 * 9 + 8 * 8
    for row in rows:
        example, task = row["prompt"].split("\n")
        assert example == "2 + 2 = 4"
        a, operator, b, _ = task.split(" ")
        expected = int(a) + int(b) if operator == "+" else int(a) * int(b)
        assert row["reward_model"]["ground_truth"] == str(expected)


@pytest.mark.parametrize(("file", "rows"), [("tiny_addition.jsonl", tiny_rows()), ("arithmetic.jsonl", demo_rows())])
def test_the_shipped_files_are_what_the_writer_writes(file: str, rows: list[dict[str, object]], tmp_path: Path) -> None:
    write_rows(rows, tmp_path / file)
    assert (DATA / file).read_text() == (tmp_path / file).read_text()
    assert [json.loads(line)["extra_info"]["index"] for line in (DATA / file).read_text().splitlines()] == list(
        range(len(rows))
    )
