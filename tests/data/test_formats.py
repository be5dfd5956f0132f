"""The files that people have: other formats, other columns, several sets."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config import RunSpec
from sluice.data import check_unchanged, load_prompts, manifest_of, mixed_position
from sluice.errors import ConfigError
from sluice.locations import locate
from tests.data.conftest import row, write_jsonl

SpecOf = Callable[..., RunSpec]
GSM8K = {"question": "Two and two?", "answer": "2+2 = <<2+2=4>>4\n#### 4"}


def write_dataset(folder: Path, rows: list[dict[str, object]]) -> Path:
    """A folder in the form that Hugging Face's `datasets` saves: state.json and Arrow streams."""
    folder.mkdir()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return folder


def test_every_format_of_the_same_rows_gives_the_same_table(tmp_path: Path, spec_of: SpecOf) -> None:
    rows = [row(f"{i}+1=", str(i + 1), extra_info={"index": str(i)}) for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "shards").mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:2]), tmp_path / "shards" / "1.parquet")
    pq.write_table(pa.Table.from_pylist(rows[2:]), tmp_path / "shards" / "2.parquet")
    files = [tmp_path / "a.parquet", tmp_path / "a.json", tmp_path / "shards", write_dataset(tmp_path / "saved", rows)]
    prints = {load_prompts(spec_of(file)).fingerprint for file in files}
    assert prints == {load_prompts(spec_of(write_jsonl(tmp_path / "a.jsonl", *rows))).fingerprint}


def test_csv_with_its_own_columns_is_read_by_map_keys_and_keeps_the_others(tmp_path: Path, spec_of: SpecOf) -> None:
    file = tmp_path / "a.csv"
    file.write_text('frage,mehr,loesung,quelle,stufe\n"Was ist\n""3+4""?",Kurz!,07,exact,3\n8-1,,7,exact,1\n')
    keys = {"prompt": "frage", "query": "mehr", "response": "loesung", "data_source": "quelle"}
    table = load_prompts(spec_of(file, map_keys=keys))
    first, second = table.row(0), table.row(1)
    assert (first.text, first.ground_truth, first.data_source) == ('Was ist\n"3+4"?\nKurz!', "07", "exact")
    assert json.loads(first.extra_info) == {"stufe": "3"}
    assert second.text == "8-1"


def test_a_system_column_comes_before_the_prompt_in_the_chat(tmp_path: Path, spec_of: SpecOf) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", row("3+4=", tone="Be brief."), row("4+4=", tone=None))
    table = load_prompts(spec_of(file, prompt_format="chat", map_keys={"system": "tone"}))
    assert "<|system|>Be brief." in table.row(0).text
    assert "<|system|>" not in table.row(1).text


def test_public_sets_are_read_as_they_are_published(tmp_path: Path, spec_of: SpecOf) -> None:
    gsm8k = load_prompts(spec_of(write_jsonl(tmp_path / "g.jsonl", GSM8K), row_format="gsm8k", prompt_style="gsm8k"))
    assert (gsm8k.row(0).ground_truth, gsm8k.row(0).data_source) == ("4", "gsm8k")
    assert gsm8k.row(0).text.startswith("Two and two?\n\nThink step by step.")
    deepmath = write_jsonl(tmp_path / "d.jsonl", {"question": "x?", "final_answer": "\\infty", "difficulty": 3.5})
    table = load_prompts(spec_of(deepmath, row_format="deepmath", prompt_style="dapo"))
    assert (table.row(0).ground_truth, table.row(0).data_source) == ("\\infty", "math")
    assert json.loads(table.row(0).extra_info) == {"difficulty": 3.5}
    assert table.row(0).text.endswith('Remember to put your answer on its own line after "Answer:".')


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([{"problem": "1?", "answer": "1"}], {"row_format": "problem_answer"}, "column 'data_source': is missing; set"),
        ([{"q": "1?", "answer": "1"}], {"row_format": "problem_answer"}, "column 'problem': is missing; the row has"),
        ([GSM8K | {"answer": "4 ####"}], {"row_format": "gsm8k"}, "has nothing after its last ####"),
        ([row()], {"map_keys": {"system": "tone"}}, "column 'tone': is missing; data.map_keys.system names it"),
        ([row(q=3)], {"map_keys": {"query": "q"}}, "column 'q': is a int, not a string"),
        ([row([{"role": "user", "content": "1"}], q="x")], {"map_keys": {"query": "q"}}, "only goes with a text"),
    ],
)
def test_a_column_that_does_not_fit_is_named_with_its_knob(
    tmp_path: Path, spec_of: SpecOf, rows: list[dict[str, object]], fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_prompts(spec_of(write_jsonl(tmp_path / "a.jsonl", *rows), **fields))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"a,b\n1\n", "row 1 has another number of cells"),
        ("a.csv", b"a,b\n1,caf\xe9\n", "is not CSV in UTF-8"),
        ("a.json", b'[{"a": 1]', "is not JSON"),
        ("a.arrow", b"not arrow", "is not an Arrow stream"),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, spec_of: SpecOf, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_prompts(spec_of(tmp_path / name))


def test_a_saved_set_with_splits_asks_for_one(tmp_path: Path, spec_of: SpecOf) -> None:
    write_dataset(tmp_path / "train", [row()])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(ConfigError, match=r"has the splits train; name one"):
        load_prompts(spec_of(tmp_path))


def test_a_mix_draws_each_set_by_its_share_from_its_own_rows(tmp_path: Path, spec_of: SpecOf) -> None:
    many = write_jsonl(tmp_path / "many.jsonl", *[row(f"{i}+1=") for i in range(30)])
    few = write_jsonl(tmp_path / "few.jsonl", *[row(f"{i}*2=") for i in range(4)])
    table = load_prompts(spec_of(many, few, mixing_weights=[0.75, 0.25]))
    drawn = [table.draw(n) for n in range(1000)]
    texts = Counter("*" in table.row(index).text for _, index in drawn)
    assert texts == {False: 750, True: 250}
    assert table.counts.of_files == (30, 4)
    times = Counter(index for _, index in drawn)
    assert {times[i] for i in range(30)} == {25}
    assert {times[i] for i in range(30, 34)} <= {62, 63}


def test_a_mix_with_an_empty_set_is_refused(tmp_path: Path, spec_of: SpecOf) -> None:
    some, none = write_jsonl(tmp_path / "some.jsonl", row()), write_jsonl(tmp_path / "none.jsonl")
    assert len(load_prompts(spec_of(some, none))) == 1
    with pytest.raises(ConfigError, match=r"no prompt is left of .*none\.jsonl"):
        load_prompts(spec_of(some, none, mixing_weights=[1, 1]))


def test_a_mix_needs_a_weight_for_each_file(tmp_path: Path, spec_of: SpecOf) -> None:
    with pytest.raises(ConfigError, match="mixing_weights has 1 weights for 2 train_files"):
        spec_of(tmp_path / "a.jsonl", tmp_path / "b.jsonl", mixing_weights=[1])


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.01, 100)), min_size=1, max_size=5),
    st.integers(0, 9),
    st.integers(0, 5000),
)
def test_every_draw_of_a_mix_is_a_row_of_the_table_and_takes_sets_evenly(
    sets: list[tuple[int, float]], seed: int, n: int
) -> None:
    sizes, weights = [size for size, _ in sets], [weight for _, weight in sets]
    _, index = mixed_position(n, sizes, weights, seed, shuffle=True)
    assert 0 <= index < sum(sizes)
    block = [mixed_position(i, [1] * len(sizes), weights, seed, shuffle=True)[1] for i in range(1000)]
    shares = Counter(block)
    for chosen, weight in enumerate(weights):
        assert abs(shares[chosen] - 1000 * weight / sum(weights)) <= len(sets)
        assert shares[chosen] >= 1


@pytest.mark.parametrize(
    ("location", "message"), [("hub:name", "write hub:OWNER/NAME"), ("hub:owner/", "write hub:OWNER/NAME")]
)
def test_a_malformed_hub_name_is_refused(location: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        locate(location, "dataset", "data.train_files")


def test_what_the_hub_cannot_give_is_said_in_one_line_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"model\.path = 'hub:owner/name': not in the cache.*HF_HOME") as caught:
        locate("hub:owner/name", "model", "model.path")
    assert "\n" not in str(caught.value)


def test_the_manifest_names_each_file_by_hash_and_notices_other_prompts(tmp_path: Path, spec_of: SpecOf) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", row("1"), row("1"), row("2"))
    spec = spec_of(file)
    manifest = manifest_of(spec, load_prompts(spec))
    assert manifest["counts"]["duplicates"] == 1
    [entry] = manifest["files"]
    assert entry["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    check_unchanged(manifest, load_prompts(spec))
    write_jsonl(file, row("1"), row("3"))
    with pytest.raises(ConfigError, match="the prompts have changed since the run was created"):
        check_unchanged(manifest, load_prompts(spec))
