"""What is wrong with a value, in words of people instead of those of the validating library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is no known field",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must match {pattern}",
    "int_from_float": "must be a whole number",
    "value_error": "{error}",
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text in quotes",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
    "path": "a path",
}
"""By the first word of an error's type, such as int_parsing or tuple_type."""


def without_echoes(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The errors of a ValidationError that are causes: a list with a wrong entry also counts as too short."""
    places = [error["loc"] for error in errors]

    def echoes(error: ErrorDetails) -> bool:
        loc = error["loc"]
        return error["type"] == "too_short" and any(len(p) > len(loc) and p[: len(loc)] == loc for p in places)

    return [error for error in errors if not echoes(error)]


def in_plain_words(error: Mapping[str, Any]) -> str:
    """One error of a pydantic ValidationError as the end of a sentence that begins with the field's name and value."""
    kind = str(error["type"])
    context = error.get("ctx", {})
    if kind.endswith("too_short") and context.get("min_length") == 1:
        return "must not be empty"
    if kind in _WORDS:
        return _WORDS[kind].format(**{name: f"{v:g}" if isinstance(v, float) else v for name, v in context.items()})
    name, _, what = kind.partition("_")
    if name in _KINDS and what in ("type", "parsing", "parsing_size", "unicode", "attributes_type"):
        return f"must be {_KINDS[name]}"
    return str(error["msg"])
