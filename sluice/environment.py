"""Deployment settings from the environment: where things are, checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sluice.errors import ConfigError

S = TypeVar("S", bound=BaseModel)


def read_settings(
    kind: type[S], variables: Mapping[str, str], environ: Mapping[str, str], secrets: Collection[str] = ()
) -> S:
    """The settings `kind` from those of its `variables` (field → environment name) that are set and not empty.

    Args:
        secrets: fields whose value is never shown.

    Raises:
        ConfigError: one line `NAME=value: what is wrong`.
    """
    given = {field: environ[name] for field, name in variables.items() if environ.get(name)}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first["msg"]).removeprefix("Value error, ")
        if not first["loc"]:
            raise ConfigError(message) from None
        field = str(first["loc"][0])
        shown = "***" if field in secrets else first["input"]
        raise ConfigError(f"{variables[field]}={shown}: {message}") from None
