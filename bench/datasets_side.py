"""Data preparation with `datasets`, in an environment that has it: the other side of `data_bench.py`.

    python datasets_side.py FILE MODEL MAX_TOKENS WORKERS

Reads a parquet file in the DAPO-Math-17k schema, leaves out exact copies, applies the model's chat template (a text
is taken as it is where the model has none), tokenises with `map` in so many workers, and drops what is too long. Prints
one JSON line: prompts left, tokens of all of them, seconds and CPU-seconds. Clocks start when all is imported.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from typing import Any

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}  # a process a worker is parallel enough


def main(file: str, model: str, max_tokens: int, workers: int) -> None:
    import datasets  # type: ignore[import-not-found]  # lives in another environment
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.encode("warm")
    with tempfile.TemporaryDirectory() as cache:
        begun, cpu = time.monotonic(), _cpu_seconds()
        rows = datasets.load_dataset("parquet", data_files=file, split="train", cache_dir=cache)
        seen: set[tuple[str, str, str]] = set()
        rows = rows.filter(lambda row: _is_first(row, seen), keep_in_memory=True)
        rows = rows.map(_tokens, batched=True, num_proc=workers, fn_kwargs={"tokenizer": tokenizer})
        rows = rows.filter(lambda batch: [n <= max_tokens for n in batch["length"]], batched=True)
        found = {"prompts": len(rows), "tokens": sum(rows["length"])}
        found |= {"seconds": time.monotonic() - begun, "cpu_seconds": _cpu_seconds() - cpu}
    print(json.dumps(found))


def _is_first(row: dict[str, Any], seen: set[tuple[str, str, str]]) -> bool:
    key = (json.dumps(row["prompt"]), row["reward_model"]["ground_truth"], row["data_source"])
    if key in seen:
        return False
    seen.add(key)
    return True


def _tokens(batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    if tokenizer.chat_template:
        texts = tokenizer.apply_chat_template(batch["prompt"], add_generation_prompt=True, tokenize=False)
    else:
        texts = [messages[0]["content"] for messages in batch["prompt"]]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return {"input_ids": ids, "length": [len(row) for row in ids]}


def _cpu_seconds() -> float:
    """Of this process and of the workers that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
