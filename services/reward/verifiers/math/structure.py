"""What an answer is: a number, words, a tuple, a set, an interval, a union, a matrix, or an expression."""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.reward.verifiers.cleaning import MAX_DEPTH, nesting
from services.reward.verifiers.math.number import Number, read_number

MAX_PARTS = 64
"""Parts of an answer; one with more is read as an expression, which has its own bound."""

_CLOSING = {"(": ")", "[": "]", "\\{": "\\}"}
_SPLIT_WORDS = re.compile(r"\s*(?:,\s*)?(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])\s*|[和或与]")
_MATRIX = re.compile(r"\\begin\s*\{([bpBvV]?matrix|array)\}\s*(?:\{[lcr|\s]*\})?(.*?)\\end\s*\{\1\}", re.DOTALL)
NAME = r"[A-Za-z](?:_\{?\w+\}?)?'*(?:\s*\([A-Za-z](?:\s*,\s*[A-Za-z])*\))?|\\[a-z]+"
NAMED = re.compile(rf"({NAME})\s*(?:=|\\in(?![A-Za-z]))\s*(?![=<>])(.+)", re.DOTALL)
_WORDS = re.compile(r"[^\W\d_](?:[\s'.-]*[^\W\d_])*")
_TRUE = frozenset({"yes", "true", "correct", "是", "对", "正确", "真"})
_FALSE = frozenset({"no", "false", "incorrect", "否", "不是", "不对", "错", "错误", "假"})


@dataclass(frozen=True, slots=True)
class Words:
    """A text answer in lower case, without spaces and hyphens; one word for all that mean yes, one for no."""

    text: str


@dataclass(frozen=True, slots=True)
class Formula:
    """Whatever is left to algebra."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A tuple or interval (`opening` and `closing` as written), a set (`\\{`), a bare list (empty), or a union."""

    opening: str
    closing: str
    items: tuple[Answer, ...]
    union: bool = False

    @property
    def ordered(self) -> bool:
        return self.opening in ("(", "[")


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is what was read, without white space that means nothing; `name` is what stood before an equals sign."""

    text: str
    value: Number | Words | Parts | Matrix | Formula
    name: str = ""


def read_answer(text: str) -> Answer:
    """The structure of a cleaned answer. Never raises: what has no structure is a formula."""
    if nesting(text) > MAX_DEPTH:
        return Answer(text, Formula())
    named = NAMED.fullmatch(text)
    if named and not re.search(r"(?<!\\)[<>=]", named[2]) and len(split(named[2], ",")) < 2:
        inner = read_answer(named[2].strip())
        return Answer(inner.text, inner.value, re.sub(r"\s", "", named[1]))
    number = read_number(text)
    if number is not None:
        return Answer(text, number)
    for read in (_matrix, _union, _bracketed, _listed, _plus_minus, _words):
        value = read(text)
        if value is not None:
            return value if isinstance(value, Answer) else Answer(text, value)
    return Answer(text, Formula())


def split(text: str, separator: str) -> list[str]:
    """`text` cut at each `separator` outside of brackets, parts without white space around them."""
    parts: list[str] = []
    depth = start = at = 0
    while at < len(text):
        if depth <= 0 and text.startswith(separator, at):
            parts.append(text[start:at].strip())
            start = at = at + len(separator)
            continue
        depth += _deeper(text, at)
        at += 2 if text[at] == "\\" and not text[at + 1 : at + 2].isalpha() else 1
    return [*parts, text[start:].strip()]


def _deeper(text: str, at: int) -> int:
    if text[at] == "\\":
        return {"{": 1, "}": -1}.get(text[at + 1 : at + 2], 0)
    return {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)


def _matrix(text: str) -> Matrix | None:
    match = _MATRIX.fullmatch(text)
    if match:
        lines = [line for line in re.split(r"\\\\|\\cr", match[2]) if line.strip()]
        rows = [line.split("&") for line in lines]
    elif text.startswith("[[") and text.endswith("]]"):
        rows = [split(row.strip()[1:-1], ",") for row in split(text[1:-1], ",")]
    else:
        return None
    if not 0 < sum(map(len, rows)) <= MAX_PARTS:
        return None
    return Matrix(tuple(tuple(read_answer(cell.strip()) for cell in row) for row in rows))


def _union(text: str) -> Parts | None:
    parts = split(text, "\\cup")
    return _parts("", "", parts, union=True) if len(parts) > 1 else None


def _bracketed(text: str) -> Parts | Answer | None:
    for opening in _CLOSING:
        closing = next((end for end in _CLOSING.values() if text.endswith(end)), None)
        if closing is None or not text.startswith(opening):
            continue
        if (opening == "\\{") != (closing == "\\}"):
            return None
        inner = text[len(opening) : -len(closing)]
        parts = split(inner, ",")
        if not _balanced(inner) or not all(parts):
            return None
        if opening == "\\{" or len(parts) > 1:
            return _parts(opening, closing, parts)
        return read_answer(inner.strip()) if (opening, closing) == ("(", ")") else None
    return None


def _balanced(text: str) -> bool:
    depth = 0
    at = 0
    while at < len(text):
        depth += _deeper(text, at)
        if depth < 0:
            return False
        at += 2 if text[at] == "\\" and not text[at + 1 : at + 2].isalpha() else 1
    return depth == 0


def _listed(text: str) -> Parts | None:
    parts = [part for piece in split(text, ",") for half in split(piece, ";") for part in _SPLIT_WORDS.split(half)]
    parts = [part.strip() for part in parts if part.strip()]
    return _parts("", "", parts) if len(parts) > 1 else None


def _plus_minus(text: str) -> Parts | None:
    if text.count("\\pm") != 1:
        return None
    before, _, after = text.partition("\\pm")
    return _parts("", "", [f"{before}{sign}{after}".strip().lstrip("+").strip() for sign in "+-"])


def _parts(opening: str, closing: str, parts: list[str], union: bool = False) -> Parts | None:
    if len(parts) > MAX_PARTS:
        return None
    return Parts(opening, closing, tuple(read_answer(part) for part in parts), union)


def _words(text: str) -> Words | None:
    if not _WORDS.fullmatch(text) or len(text) > 200:
        return None
    word = re.sub(r"[\s'.-]", "", text).casefold()
    return Words("yes" if word in _TRUE else "no" if word in _FALSE else word)
