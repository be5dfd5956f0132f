"""A prompt table as a file of its own, in the DAPO-Math-17k schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.data.source import SourceRow
from sluice.data.table import PromptTable

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_REWARD_MODEL = pa.struct([("ground_truth", pa.string()), ("style", pa.string())])


def write_prompts(table: PromptTable, file: Path) -> None:
    """Write the rows behind the table: mapped, in their style, without copies and without what was too long.

    Raises:
        OSError: the file cannot be written.
    """
    rows = list(table.sources)
    chats = [row.prompt for row in rows]
    # A column has one type: as soon as one prompt has messages, texts become a user's message.
    texts = all(isinstance(prompt, str) for prompt in chats)
    columns = {
        "data_source": pa.array([row.data_source for row in rows], pa.string()),
        "prompt": pa.array(chats, pa.string()) if texts else pa.array([_chat(row) for row in rows], pa.list_(_MESSAGE)),
        "ability": pa.array(["MATH"] * len(rows), pa.string()),
        "reward_model": pa.array([{"ground_truth": r.ground_truth, "style": "rule"} for r in rows], _REWARD_MODEL),
        "extra_info": pa.array([row.extra_info for row in rows], pa.string()),
    }
    pq.write_table(pa.table(columns), file)


def _chat(row: SourceRow) -> list[dict[str, Any]]:
    messages = (("user", row.prompt),) if isinstance(row.prompt, str) else row.prompt
    return [{"role": role, "content": content} for role, content in messages]
