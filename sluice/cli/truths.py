"""Ground truths that no verifier could judge by, found before a run is started with them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from sluice.errors import ConfigError

if TYPE_CHECKING:  # at run time the caller has it already
    from sluice.data import PromptTable

SHOWN = 5


def refuse_unusable_truths(table: PromptTable) -> None:
    """Have each prompt's ground truth checked by the verifier that its data source leads to.

    Raises:
        ConfigError: some cannot be used; the text has their number and the first of them.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        for index in range(len(table)):
            row = table.row(index)
            file.write(json.dumps({"ground_truth": row.ground_truth, "data_source": row.data_source}) + "\n")
        file.flush()
        # A process of its own: the verifiers belong to the reward service, which only its own package imports.
        command = [sys.executable, "-m", "services.reward", "verify", file.name, "--check-truths", "by-data-source"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    refused = [json.loads(line) for line in done.stdout.splitlines()]
    if refused:
        first = "; ".join(f"prompt {line['row'] - 1}: {line['message']}" for line in refused[:SHOWN])
        raise ConfigError(f"{len(refused)} of {len(table)} ground truths cannot be judged by, such as {first}")
    if done.returncode:
        raise ConfigError("the ground truths could not be checked; --any-truth prepares the prompts unchecked")
