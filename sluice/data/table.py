"""The prompt table: all training prompts of a run, tokenised, in the order that row indices name."""

from __future__ import annotations

import copy
import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from jinja2 import TemplateError

from sluice.config import RunSpec
from sluice.data.order import mixed_position, position
from sluice.data.prompt_tokens import ChatTemplate, load_chat_template, load_tokenizer
from sluice.data.source import SourceRow, read_rows
from sluice.errors import ConfigError
from sluice.locations import locate, model_folder
from sluice.types import Origin

KNOB = "data.train_files"
TOKENISE_ROWS = 2048

Progress = Callable[["TableCounts"], None]
"""Told the counts so far, every TOKENISE_ROWS prompts."""


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
    of_files: tuple[int, ...]
    """Prompts left of each train file."""


class PromptTable:
    """Immutable once loaded. Token ids are kept packed: a set of a million prompts stays in memory."""

    def __init__(self, spec: RunSpec, rows: Sequence[tuple[array[int], SourceRow, str]], counts: TableCounts) -> None:
        self._rows = rows
        self._seed = spec.trainer.seed
        self._shuffle = spec.data.shuffle
        self._weights = spec.data.mixing_weights
        self._origin: Origin | None = None
        self.counts = counts
        self.fingerprint: str = _fingerprint(rows)
        """Hash of everything a prompt takes from this table: equal tables issue equal prompts."""

    def __len__(self) -> int:
        return len(self._rows)

    def going_on_from(self, origin: Origin) -> PromptTable:
        """The same prompts for a forked run, whose draws begin where its origin says."""
        table = copy.copy(self)
        table._origin = origin
        return table

    def row(self, index: int) -> PromptRow:
        """Raises: IndexError: there is no such row."""
        if not 0 <= index < len(self._rows):
            raise IndexError(f"prompt {index} of a table of {len(self._rows)} rows")
        token_ids, source, text = self._rows[index]
        return PromptRow(index, tuple(token_ids), text, source.ground_truth, source.data_source, source.extra_info)

    def data_source(self, index: int) -> str:
        """Of row `index`, without the rest of it."""
        return self._rows[index][1].data_source

    @property
    def sources(self) -> Iterator[SourceRow]:
        """The rows behind the prompts, in table order, as their files have them."""
        return (source for _, source, _ in self._rows)

    def draw(self, n: int) -> tuple[int, int]:
        """(epoch, row index) of draw `n` of the run. Raises: ValueError: `n` is negative."""
        if self._origin is not None:
            n = self._origin.draw(n)
        if self._weights is None:
            return position(n, len(self), self._seed, self._shuffle)
        return mixed_position(n, self.counts.of_files, self._weights, self._seed, self._shuffle)


def load_prompts(spec: RunSpec, progress: Progress | None = None) -> PromptTable:
    """Read, check, de-duplicate and tokenise the training files of a run.

    Raises:
        ConfigError: a file, row or column is wrong, a prompt is too long under data.overlong_prompts = 'error', or
            no prompt is left, of a file that has a share in the mix or of all.
    """
    reader = _Reader(spec)
    rows = list(_tokenised(spec, reader, progress))
    counts = reader.counts
    empty = [file for file, left in zip(spec.data.train_files, counts.of_files, strict=True) if not left]
    if not rows or (spec.data.mixing_weights and empty):
        raise ConfigError(
            f"{KNOB}: no prompt is left of {', '.join(empty)}: {counts.rows_read} rows, "
            f"{counts.duplicates} duplicates, {counts.overlong} over data.max_prompt_length = "
            f"{spec.data.max_prompt_length}"
        )
    return PromptTable(spec, rows, counts)


class _Reader:
    """The rows of all files without exact copies, and the counts of what was left out."""

    def __init__(self, spec: RunSpec) -> None:
        self._config = spec.data
        self._verifier = spec.reward.verifier
        self._seen: set[bytes] = set()
        self._rows_read = self._duplicates = self._overlong = 0
        self._of_files = dict.fromkeys(spec.data.train_files, 0)

    @property
    def counts(self) -> TableCounts:
        of_files = tuple(self._of_files[file] for file in self._config.train_files)
        return TableCounts(self._rows_read, self._duplicates, self._overlong, of_files)

    def __iter__(self) -> Iterator[SourceRow]:
        for file in self._of_files:
            for row in self._read(file):
                self._rows_read += 1
                if self._config.deduplicate and self._is_copy(row):
                    self._duplicates += 1
                else:
                    yield row

    def _read(self, file: str) -> Iterator[SourceRow]:
        path = locate(file, "dataset", KNOB)
        try:
            yield from read_rows(file, path, self._config, self._verifier)
        except ConfigError as error:  # which file or row; whoever reads it also needs to know where that is said
            raise ConfigError(f"{KNOB}: {error}") from None

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
            raise row.fault("has no tokens")
        if len(token_ids) > limit:
            if self._config.overlong_prompts == "error":
                raise row.fault(
                    f"has {len(token_ids)} tokens, data.max_prompt_length is {limit}; "
                    "raise it or set data.overlong_prompts to 'drop' or 'truncate_left'"
                )
            self._overlong += 1
            if self._config.overlong_prompts == "drop":
                return None
        self._of_files[row.file] += 1
        return token_ids[-limit:]


def _tokenised(
    spec: RunSpec, reader: _Reader, progress: Progress | None
) -> Iterator[tuple[array[int], SourceRow, str]]:
    """The tokenizer takes a chunk at a time, on all cores."""
    folder = model_folder(spec.model.path)
    template = load_chat_template(folder) if spec.data.prompt_format == "chat" else None
    tokenizer = load_tokenizer(folder)
    rows = iter(reader)
    while chunk := list(islice(rows, TOKENISE_ROWS)):
        texts = [_text(row, template) for row in chunk]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        for row, text, encoding in zip(chunk, texts, encodings, strict=True):
            token_ids = reader.fit(encoding.ids, row)
            if token_ids is not None:
                yield array("I", token_ids), row, text
        if progress is not None:
            progress(reader.counts)


def _text(row: SourceRow, template: ChatTemplate | None) -> str:
    if template is None:
        return row.prompt if isinstance(row.prompt, str) else _only_content(row)
    messages = [("user", row.prompt)] if isinstance(row.prompt, str) else row.prompt
    try:
        return template.render([{"role": role, "content": content} for role, content in messages])
    except TemplateError as error:
        raise row.fault(f"the model's chat template refuses it: {error}") from None


def _only_content(row: SourceRow) -> str:
    if len(row.prompt) != 1:
        raise row.fault(
            f"has {len(row.prompt)} messages; data.prompt_format = 'raw' takes a string or one message, use 'chat'"
        )
    return row.prompt[0][1]


def _fingerprint(rows: Sequence[tuple[array[int], SourceRow, str]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for token_ids, source, text in rows:
        fields = [token_ids.tolist(), text, source.ground_truth, source.data_source, source.extra_info]
        digest.update(json.dumps(fields).encode() + b"\n")
    return digest.hexdigest()
