"""Deployment settings from the environment: where things are, checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, ValidationError

from sluice.errors import ConfigError
from sluice.faults import in_plain_words
from sluice.secrets import HIDDEN, PERCENT_ENCODE, encoded_credentials, read_secret, redact, redact_url

S = TypeVar("S", bound=BaseModel)
HIGHEST_PORT = 65535

LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def check_nats_url(value: str) -> str:
    """`value`, if it is one URL of a NATS server or several with commas between. Raises: ValueError: it is not."""
    if redact_url(value) == HIDDEN:
        raise ValueError(PERCENT_ENCODE)
    for part in value.split(","):
        url = _split(part.strip(), ("nats", "tls", "ws", "wss"), "nats://HOST:4222")
        if url.path not in ("", "/") or not url.hostname:
            raise ValueError(f"{redact(part)!r} is not of the form nats://HOST:4222")
    encoded_credentials(value)
    return value


def check_redis_url(value: str) -> str:
    """`value`, if it is the URL of a Redis-protocol server. Raises: ValueError: it is not."""
    if redact_url(value) == HIDDEN:
        raise ValueError(PERCENT_ENCODE)
    example = "redis://HOST:6379/0"
    url = _split(value, ("redis", "rediss", "unix"), example)
    database = url.path.strip("/")
    if url.scheme != "unix" and (not url.hostname or not (database == "" or database.isdigit())):
        raise ValueError(f"is not of the form {example}")
    return value


def check_address(value: str) -> str:
    """`value`, if it is `host:port`. Raises: ValueError: it is not."""
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= HIGHEST_PORT):
        raise ValueError(f"{value!r} is not of the form HOST:PORT with a port up to {HIGHEST_PORT}")
    return value


def addresses(value: object) -> object:
    """The parts of a list as an environment variable has it, separated by commas; anything else as it is."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NatsUrl = Annotated[str, AfterValidator(check_nats_url)]
RedisUrl = Annotated[str, AfterValidator(check_redis_url)]
Address = Annotated[str, AfterValidator(check_address)]


def read_settings(
    kind: type[S],
    variables: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    secrets: Collection[str] = (),
    urls: Collection[str] = (),
) -> S:
    """The settings `kind` from those of its `variables` (field → environment name) that are set and not empty.

    Args:
        secrets: fields whose value is never shown, and may come from a file (`NAME_FILE`).
        urls: fields that may hold credentials: shown without them, and may come from a file.

    Raises:
        ConfigError: one line `NAME=value: what is wrong`.
    """
    from_files = {*secrets, *urls}
    found = {
        field: read_secret(name, environ) if field in from_files else environ.get(name)
        for field, name in variables.items()
    }
    try:
        return kind.model_validate({field: value for field, value in found.items() if value})
    except ValidationError as error:
        first = error.errors()[0]
        message = in_plain_words(first)
        if not first["loc"]:
            raise ConfigError(message) from None
        field = str(first["loc"][0])
        shown = HIDDEN if field in secrets else redact_url(found.get(field) or "")
        raise ConfigError(f"{variables[field]}={shown}: {message}") from None


def _split(value: str, schemes: tuple[str, ...], example: str) -> SplitResult:
    """The parts of a URL, whose port is a port."""
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{error}; write it like {example}") from None
    if url.scheme not in schemes or port == 0:
        raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}, like {example}")
    return url
