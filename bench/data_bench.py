"""Data preparation: rows a second until a run can issue its prompts, beside `datasets` with two workers.

Both sides read the same parquet file in the DAPO-Math-17k schema, leave out exact copies, apply the model's chat
template, tokenise on two cores and drop what is too long; the prompts and tokens that are left must be the same. Sluice
is `load_prompts`, which checks every row on the way and makes the fingerprint of the prompts. The other side is
`datasets.load_dataset` → `filter` → `map(num_proc=2)` → `filter`, with no cache of an earlier turn; it has the
environment of TRL (artifacts/bench/trl-venv, 1.2 GB, made once; --quick leaves the side out when it is not there).

Two files: prompts that are all different, and prompts of which each stands there ten times, as sets in this schema
often have it (DAPO-Math-17k: a hundred times).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.against_trl import VENV, prepare_environment
from bench.harness import ROOT, Measured, Report, Side, Spread, figures_of, ratio, run_benchmark, take_turns
from sluice.config import RunSpec, load_run_spec
from sluice.data import load_prompts
from sluice.errors import SluiceError

NAME = "data"
WORKERS = 2
COPIES = 10
MAX_TOKENS = 256
SECONDS = 300
BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem."
)
AFTER = 'Remember to put your answer on its own line after "Answer:".'
WORDS = (
    "let",
    "the",
    "sum",
    "of",
    "all",
    "positive",
    "integers",
    "below",
    "that",
    "are",
    "divisible",
    "by",
    "a",
    "circle",
)
READING = (
    "Rows of the file a second of wall time, copies and what is too long included, and a second of CPU time of all "
    "processes. Imports are not counted on either side."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side that count (default 2)")
    parser.add_argument("--rows", type=int, default=12_000, help="rows of a file (default 12000)")
    parser.add_argument("--without-datasets", action="store_true", help="leave the other side out")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """Both sides on both files, in turns."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(WORKERS)}
    rounds, rows = (1, 500) if arguments.quick else (arguments.rounds, arguments.rows)
    spec = load_run_spec(Path("configs/tiny.toml" if arguments.quick else "configs/demo.toml"))
    python = ROOT / VENV / "bin" / "python"
    beside = not arguments.without_datasets and (not arguments.quick or python.is_file())
    if beside and not arguments.quick:
        await asyncio.to_thread(prepare_environment, ROOT / VENV)
    sides: dict[str, Side] = {}
    for name, copies in (("all different", 1), (f"{COPIES} copies of each", COPIES)):
        file = arguments.output / f"data-{copies}.parquet"
        write_rows(file, rows, copies, plain=arguments.quick)
        sides[f"Sluice, {name}"] = _sluice(_on(spec, file, arguments.quick), rows)
        if beside:
            sides[f"datasets, {name}"] = _datasets(python, file, spec, rows)
    found = await take_turns(sides, rounds)
    _compare(found)
    settings = {"rounds": rounds, "rows": rows, "workers": WORKERS, "model": spec.model.path, "max_tokens": MAX_TOKENS}
    return Report(settings, figures_of(found), _ratios(found), READING)


def write_rows(file: Path, rows: int, copies: int, plain: bool) -> None:
    """So many rows, each prompt in `copies` of them; `plain`: in the characters that the tiny model knows."""
    numbers = random.Random(rows)
    prompts = [_problem(numbers, plain) for _ in range(rows // copies)]
    chosen = [prompts[at % len(prompts)] for at in range(rows)]
    table = {
        "data_source": ["math_dapo"] * rows,
        "prompt": [[{"role": "user", "content": text}] for text, _ in chosen],
        "ability": ["MATH"] * rows,
        "reward_model": [{"ground_truth": truth, "style": "rule-lighteval/MATH_v2"} for _, truth in chosen],
        "extra_info": [{"index": str(at)} for at in range(rows)],
    }
    pq.write_table(pa.table(table), file)


def _problem(numbers: random.Random, plain: bool) -> tuple[str, str]:
    """A prompt and its ground truth; one in a hundred is too long."""
    a, b = numbers.randint(0, 9**9), numbers.randint(0, 9**9)
    if plain:
        return f"{a}+{b}=", str(a + b)
    words = 600 if numbers.random() < 0.01 else numbers.randint(20, 90)
    problem = " ".join(numbers.choice(WORDS) for _ in range(words))
    return f"{BEFORE}\n\nGiven ${a}x + {b} = 0$, {problem}.\n\n{AFTER}", str(a)


def _on(spec: RunSpec, file: Path, plain: bool) -> RunSpec:
    fields = spec.model_dump(mode="json")
    fields["data"] = {
        "train_files": [str(file)],
        "prompt_format": "raw" if plain else "chat",
        "max_prompt_length": MAX_TOKENS,
    }
    fields["trainer"]["max_tokens_per_micro_batch"] = 1 << 20
    return RunSpec.model_validate(fields)


def _sluice(spec: RunSpec, rows: int) -> Side:
    async def turn() -> Measured:
        begun, cpu = time.monotonic(), time.process_time()
        table = await asyncio.to_thread(load_prompts, spec)
        seconds, spent = time.monotonic() - begun, time.process_time() - cpu
        tokens = sum(len(table.row(index).token_ids) for index in range(len(table)))
        return _measured(rows, len(table), tokens, seconds, spent)

    return turn


def _datasets(python: Path, file: Path, spec: RunSpec, rows: int) -> Side:
    command = [str(python), str(ROOT / "bench" / "datasets_side.py"), str(file), spec.model.path]

    async def turn() -> Measured:
        done = await asyncio.to_thread(
            subprocess.run, [*command, str(MAX_TOKENS), str(WORKERS)], capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            raise SluiceError(f"the side of `datasets` failed: {done.stderr.strip().splitlines()[-1:]}")
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return _measured(rows, told["prompts"], told["tokens"], told["seconds"], told["cpu_seconds"])

    return turn


def _measured(rows: int, prompts: int, tokens: int, seconds: float, spent: float) -> Measured:
    return {"rows / s": rows / seconds, "rows / CPU-s": rows / spent, "prompts": prompts, "tokens": tokens}


def _compare(found: Mapping[str, Sequence[Measured]]) -> None:
    """Raises: SluiceError: the sides have prepared different prompts."""
    for name, turns in found.items():
        other = found.get(name.replace("datasets", "Sluice"), turns)
        counts = {(turn["prompts"], turn["tokens"]) for turn in (*turns, *other)}
        if len(counts) > 1:
            raise SluiceError(f"{name}: the sides count different prompts and tokens: {sorted(counts)}")


def _ratios(found: Mapping[str, Sequence[Measured]]) -> dict[str, Spread]:
    ratios = {}
    for name in (name for name in found if name.startswith("datasets")):
        ours = name.replace("datasets", "Sluice")
        for figure in ("rows / s", "rows / CPU-s"):
            ratios[f"{figure}, {ours} / datasets"] = ratio(found[ours], found[name], figure)
    return ratios


if __name__ == "__main__":
    main()
