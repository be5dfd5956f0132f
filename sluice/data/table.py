"""The prompt table: all training prompts of a run, tokenised, in the order that row indices name."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from jinja2 import TemplateError

from sluice.config import DataConfig, RunSpec
from sluice.data.prompt_tokens import ChatTemplate, load_chat_template, load_tokenizer
from sluice.data.source import SourceRow, fault, read_rows
from sluice.errors import ConfigError

TOKENISE_ROWS = 2048


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt as it is issued. `text` is what was tokenised: with the chat template applied, before truncation."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    ground_truth: str
    data_source: str
    extra_info: str
    """JSON object."""


@dataclass(frozen=True, slots=True)
class TableCounts:
    """What became of the rows that were read."""

    rows_read: int
    duplicates: int
    overlong: int
    """Over data.max_prompt_length: dropped or cut, as data.overlong_prompts says."""


class PromptTable:
    """Immutable once loaded. Token ids are kept packed: a set of a million prompts stays in memory."""

    def __init__(self, rows: Sequence[tuple[array[int], SourceRow, str]], counts: TableCounts) -> None:
        self._rows = rows
        self.counts = counts
        self.fingerprint: str = _fingerprint(rows)
        """Hash of everything a prompt takes from this table: equal tables issue equal prompts."""

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> PromptRow:
        """Raises: IndexError: there is no such row."""
        if not 0 <= index < len(self._rows):
            raise IndexError(f"prompt {index} of a table of {len(self._rows)} rows")
        token_ids, source, text = self._rows[index]
        return PromptRow(index, tuple(token_ids), text, source.ground_truth, source.data_source, source.extra_info)


def load_prompts(spec: RunSpec) -> PromptTable:
    """Read, check, de-duplicate and tokenise the training files of a run.

    Raises:
        ConfigError: a file, row or column is wrong, a prompt is too long under data.overlong_prompts = 'error', or
            no prompt is left.
    """
    reader = _Reader(spec.data)
    rows = list(_tokenised(spec, reader))
    counts = TableCounts(reader.rows_read, reader.duplicates, reader.overlong)
    if not rows:
        raise ConfigError(
            f"data.train_files: no prompt is left of {counts.rows_read} rows: {counts.duplicates} duplicates, "
            f"{counts.overlong} over data.max_prompt_length = {spec.data.max_prompt_length}"
        )
    return PromptTable(rows, counts)


class _Reader:
    """The rows of all files without exact copies, and the counts of what was left out."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._seen: set[bytes] = set()
        self.rows_read = self.duplicates = self.overlong = 0

    def __iter__(self) -> Iterator[SourceRow]:
        for file in self._config.train_files:
            for row in read_rows(file, self._config.prompt_key):
                self.rows_read += 1
                if self._config.deduplicate and self._is_copy(row):
                    self.duplicates += 1
                else:
                    yield row

    def _is_copy(self, row: SourceRow) -> bool:
        key = hashlib.blake2b(row.content.encode(), digest_size=16).digest()
        if key in self._seen:
            return True
        self._seen.add(key)
        return False

    def fit(self, token_ids: list[int], row: SourceRow) -> list[int] | None:
        """The token ids under the length limit, or None for a prompt that is dropped."""
        limit = self._config.max_prompt_length
        if not token_ids:
            raise fault(row.file, row.row, self._config.prompt_key, "has no tokens")
        if len(token_ids) <= limit:
            return token_ids
        if self._config.overlong_prompts == "error":
            raise fault(
                row.file,
                row.row,
                self._config.prompt_key,
                f"has {len(token_ids)} tokens, data.max_prompt_length is {limit}; "
                "raise it or set data.overlong_prompts to 'drop' or 'truncate_left'",
            )
        self.overlong += 1
        return token_ids[-limit:] if self._config.overlong_prompts == "truncate_left" else None


def _tokenised(spec: RunSpec, reader: _Reader) -> Iterator[tuple[array[int], SourceRow, str]]:
    folder = Path(spec.model.path)
    template = load_chat_template(folder) if spec.data.prompt_format == "chat" else None
    tokenizer = load_tokenizer(folder)
    rows = iter(reader)
    while chunk := list(islice(rows, TOKENISE_ROWS)):
        texts = [_text(row, template, spec.data.prompt_key) for row in chunk]
        for row, text, encoding in zip(
            chunk, texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True
        ):
            token_ids = reader.fit(encoding.ids, row)
            if token_ids is not None:
                yield array("I", token_ids), row, text


def _text(row: SourceRow, template: ChatTemplate | None, column: str) -> str:
    if template is None:
        return row.prompt if isinstance(row.prompt, str) else _only_content(row, column)
    messages = [("user", row.prompt)] if isinstance(row.prompt, str) else row.prompt
    try:
        return template.render([{"role": role, "content": content} for role, content in messages])
    except TemplateError as error:
        raise fault(row.file, row.row, column, f"the model's chat template refuses it: {error}") from None


def _only_content(row: SourceRow, column: str) -> str:
    if len(row.prompt) != 1:
        raise fault(
            row.file,
            row.row,
            column,
            f"has {len(row.prompt)} messages; data.prompt_format = 'raw' takes a string or one message, use 'chat'",
        )
    return row.prompt[0][1]


def _fingerprint(rows: Sequence[tuple[array[int], SourceRow, str]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for token_ids, source, text in rows:
        fields = [token_ids.tolist(), text, source.ground_truth, source.data_source, source.extra_info]
        digest.update(json.dumps(fields).encode() + b"\n")
    return digest.hexdigest()
