"""From training files to the prompt table, and every way in which a file can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from sluice.config import RunSpec
from sluice.data import load_prompts
from sluice.errors import ConfigError
from tests.data.conftest import row, write_jsonl

SpecOf = Callable[..., RunSpec]


def test_raw_prompts_are_the_text_as_it_is_without_special_tokens(tmp_path: Path, spec_of: SpecOf, model: Path) -> None:
    file = write_jsonl(
        tmp_path / "a.jsonl", row(" 3+4=", extra_info={"index": 9}), row([{"role": "user", "content": "5"}])
    )
    table = load_prompts(spec_of(file))
    first = table.row(0)
    assert first.text == " 3+4="
    assert Tokenizer.from_file(str(model / "tokenizer.json")).decode(list(first.token_ids)) == " 3+4="
    assert (first.index, first.ground_truth, first.data_source) == (0, "7", "exact")
    assert json.loads(first.extra_info) == {"index": 9}
    assert (table.row(1).text, table.row(1).extra_info) == ("5", "{}")


def test_chat_prompts_equal_what_transformers_makes_of_the_same_folder(
    tmp_path: Path, spec_of: SpecOf, model: Path
) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "system", "content": "solve it <b>\n"}, {"role": "user", "content": "What is 3 + 4?\n\n 次"}]
    file = write_jsonl(tmp_path / "a.jsonl", row(messages), row("What is <|end|> 12?"))
    table = load_prompts(spec_of(file, prompt_format="chat"))
    reference = AutoTokenizer.from_pretrained(model)
    for index, chat in enumerate([messages, [{"role": "user", "content": "What is <|end|> 12?"}]]):
        text = reference.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = reference.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert table.row(index).text == text
        assert list(table.row(index).token_ids) == list(ids)


def test_parquet_and_jsonl_of_the_same_rows_give_the_same_table(tmp_path: Path, spec_of: SpecOf) -> None:
    rows = [row([{"role": "user", "content": f"{i}+1="}], str(i + 1), extra_info={"index": str(i)}) for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    parquet = load_prompts(spec_of(tmp_path / "a.parquet"))
    jsonl = load_prompts(spec_of(write_jsonl(tmp_path / "a.jsonl", *rows)))
    assert [parquet.row(i) for i in range(5)] == [jsonl.row(i) for i in range(5)]
    assert parquet.fingerprint == jsonl.fingerprint


def test_several_files_are_read_in_the_order_given_and_the_fingerprint_knows_the_order(
    tmp_path: Path, spec_of: SpecOf
) -> None:
    a, b = write_jsonl(tmp_path / "a.jsonl", row("1")), write_jsonl(tmp_path / "b.jsonl", row("2"))
    forward, backward = load_prompts(spec_of(a, b)), load_prompts(spec_of(b, a))
    assert [forward.row(i).text for i in range(2)] == ["1", "2"]
    assert forward.fingerprint != backward.fingerprint


def test_exact_copies_are_counted_and_kept_once_unless_told_otherwise(tmp_path: Path, spec_of: SpecOf) -> None:
    copies = [row("1"), row("2"), row("1", extra_info={"index": 3}), row("1", "other truth"), row("2")]
    file = write_jsonl(tmp_path / "a.jsonl", *copies)
    table = load_prompts(spec_of(file))
    assert [(table.row(i).text, table.row(i).ground_truth) for i in range(len(table))] == [
        ("1", "7"),
        ("2", "7"),
        ("1", "other truth"),
    ]
    assert (table.counts.rows_read, table.counts.duplicates) == (5, 2)
    assert len(load_prompts(spec_of(file, deduplicate=False))) == 5


@pytest.mark.parametrize(("policy", "left"), [("drop", ["1"]), ("truncate_left", ["1", "9" * 12])])
def test_overlong_prompts_are_dropped_or_cut_from_the_left_and_counted(
    tmp_path: Path, spec_of: SpecOf, policy: str, left: list[str]
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", row("1"), row("9" * 12))
    table = load_prompts(spec_of(file, max_prompt_length=5, overlong_prompts=policy))
    assert [table.row(i).text for i in range(len(table))] == left
    assert table.counts.overlong == 1
    assert all(len(table.row(i).token_ids) <= 5 for i in range(len(table)))


def test_truncation_keeps_the_end_of_the_prompt(tmp_path: Path, spec_of: SpecOf, model: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", row("87654321"))
    table = load_prompts(spec_of(file, max_prompt_length=3, overlong_prompts="truncate_left"))
    assert Tokenizer.from_file(str(model / "tokenizer.json")).decode(list(table.row(0).token_ids)) == "321"


def test_an_overlong_prompt_can_be_an_error_that_names_the_row_the_limit_and_the_knob(
    tmp_path: Path, spec_of: SpecOf
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", row("1"), row("9" * 12))
    with pytest.raises(
        ConfigError, match=r"a.jsonl: row 2, column 'prompt': has 12 tokens, data.max_prompt_length is 5"
    ):
        load_prompts(spec_of(file, max_prompt_length=5, overlong_prompts="error"))


def test_a_run_without_one_usable_prompt_is_refused_with_the_counts(tmp_path: Path, spec_of: SpecOf) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", row("123456"), row("123456"))
    with pytest.raises(
        ConfigError, match=r"no prompt is left of .*a.jsonl: 2 rows, 1 duplicates, 1 over data.max_prompt_length"
    ):
        load_prompts(spec_of(file, max_prompt_length=2))


WRONG_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"data_source": "exact", "reward_model": {"ground_truth": "7"}}, "column 'prompt': is missing"),
    (row(data_source=None), "column 'data_source': is null"),
    (row(data_source=3), "column 'data_source': is a int"),
    (row(reward_model=None), "column 'reward_model': is null"),
    (row(reward_model="7"), "column 'reward_model': is a str"),
    (row(reward_model={"style": "rule"}), "column 'reward_model.ground_truth': is null or missing"),
    (row(truth=None), "column 'reward_model.ground_truth': is null or missing"),
    (row(truth=" "), "column 'reward_model.ground_truth': is empty"),
    (row(truth=""), "column 'reward_model.ground_truth': is empty"),
    (row(truth=34.0), "column 'reward_model.ground_truth': is 34.0"),
    (row(""), "column 'prompt': is empty"),
    (row(" \n"), "column 'prompt': is empty"),
    (row([]), "column 'prompt': is empty"),
    (row([{"role": "user", "content": ""}]), "column 'prompt': is empty"),
    (row([{"role": "user"}]), "column 'prompt': message"),
    (row(["hello"]), "column 'prompt': message 'hello' needs a role and a content"),
    (row(7), "column 'prompt': is a int"),
    (row("half \ud800 pair"), "column 'prompt': is not valid Unicode"),
    (row([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]), "has 2 messages"),
    (row(extra_info=[1]), "column 'extra_info': is a list"),
    (row(extra_info="index 3"), "column 'extra_info': is a string but not JSON"),
    (row(extra_info={"x": float("nan")}), "column 'extra_info': cannot be written as JSON"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_ROWS)
def test_a_wrong_row_is_refused_by_file_row_and_column(
    tmp_path: Path, spec_of: SpecOf, wrong: dict[str, Any], message: str
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", row("1"), row("2"), wrong)
    with pytest.raises(ConfigError) as caught:
        load_prompts(spec_of(file))
    assert f"{file}: row 3, " in str(caught.value)
    assert message in str(caught.value)


def test_integers_leading_zeros_and_missing_optional_columns_are_coped_with(tmp_path: Path, spec_of: SpecOf) -> None:
    file = write_jsonl(
        tmp_path / "a.jsonl",
        row("1", 34),
        row("2", "034"),
        row("3", extra_info='{"index": "x"}'),
        row("4", extra_info=None),
    )
    table = load_prompts(spec_of(file))
    assert [table.row(i).ground_truth for i in range(4)] == ["34", "034", "7", "7"]
    assert [table.row(i).extra_info for i in range(4)] == ["{}", "{}", '{"index": "x"}', "{}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "caf\xe9"}', "row 2 is not UTF-8"),
        (b'{"prompt": ', "row 2 is not JSON"),
        (b'["prompt"]', "row 2 is a JSON list, not an object"),
    ],
)
def test_a_line_that_is_not_a_json_object_in_utf_8_is_refused(
    tmp_path: Path, spec_of: SpecOf, line: bytes, message: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(json.dumps(row()).encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=message):
        load_prompts(spec_of(file))


def test_a_parquet_file_without_a_needed_column_is_refused_with_the_columns_it_has(
    tmp_path: Path, spec_of: SpecOf
) -> None:
    pq.write_table(pa.table({"question": ["1"], "data_source": ["exact"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"column 'prompt': is missing; the row has \['data_source', 'question'\]"):
        load_prompts(spec_of(tmp_path / "a.parquet"))


def test_a_parquet_cell_in_another_encoding_is_refused_by_row_and_column(tmp_path: Path, spec_of: SpecOf) -> None:
    latin = pa.array([b"ok", b"caf\xe9"]).cast(pa.binary()).view(pa.string())
    truths = pa.array([{"ground_truth": "7"}] * 2)
    columns = {"prompt": latin, "data_source": pa.array(["exact"] * 2), "reward_model": truths}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"row 2, column 'prompt': is not UTF-8"):
        load_prompts(spec_of(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", None, "No such file"),
        ("a.parquet", None, "No such file"),
        ("a.parquet", b"no parquet at all", "is not a parquet file"),
        ("a.txt", b"prompt\n1\n", r"is none of \.parquet, \.jsonl"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_field_and_name(
    tmp_path: Path, spec_of: SpecOf, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_prompts(spec_of(tmp_path / name))
    assert str(caught.value).startswith("data.train_files: ") and name in str(caught.value)


def test_a_conversation_that_the_models_template_refuses_is_refused_by_row(tmp_path: Path, spec_of: SpecOf) -> None:
    late_system = [{"role": "user", "content": "1"}, {"role": "system", "content": "2"}]
    file = write_jsonl(tmp_path / "a.jsonl", row(late_system))
    with pytest.raises(
        ConfigError, match=r"row 1, column 'prompt': the model's chat template refuses it: system comes"
    ):
        load_prompts(spec_of(file, prompt_format="chat"))


def test_a_row_that_is_not_there_is_an_index_error(tmp_path: Path, spec_of: SpecOf) -> None:
    table = load_prompts(spec_of(write_jsonl(tmp_path / "a.jsonl", row())))
    with pytest.raises(IndexError, match="prompt -1 of a table of 1 rows"):
        table.row(-1)
