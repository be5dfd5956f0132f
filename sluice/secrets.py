"""Secrets of a deployment: where they may come from, and how a text is shown without them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sluice.errors import ConfigError

FILE_SUFFIX = "_FILE"
"""A secret NAME may be given as NAME_FILE, the path of a file that holds it: what Docker and Kubernetes mount."""
HIDDEN = "***"
_SECRET_OPTION = re.compile(r"(--[\w-]*(?:key|token|password|secret))(=.*)?")
_USERINFO = re.compile(r"(?<=://)[^/\s'\"]+@")
_PLAIN_USERINFO = re.compile(r"(?<=://)[^/?#@,\s'\"]+@")
PERCENT_ENCODE = (
    "cannot be read as a URL; write what a user or password has besides letters, digits and -._~ percent-encoded, "
    "as %2F for / or %40 for @"
)


def read_secret(name: str, environ: Mapping[str, str]) -> str | None:
    """The value of `name`, or what the file that `name`_FILE names holds, without white space around it.

    Empty variables count as not set.

    Raises:
        ConfigError: both are set, or the file cannot be read or is empty.
    """
    file = environ.get(name + FILE_SUFFIX)
    if not file:
        return environ.get(name) or None
    if environ.get(name):
        raise ConfigError(f"{name} and {name}{FILE_SUFFIX} are both set; keep one of them")
    try:
        secret = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{name}{FILE_SUFFIX}={file}: {error.strerror}; mount the secret there") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name}{FILE_SUFFIX}={file}: is not a text") from None
    if not secret:
        raise ConfigError(f"{name}{FILE_SUFFIX}={file}: the file is empty; write the secret into it")
    return secret


def redact(text: str) -> str:
    """`text` with user, password and token of every URL in it hidden."""
    return _USERINFO.sub(f"{HIDDEN}@", text) if "@" in text else text


def redact_url(url: str) -> str:
    """`url`, or several with commas between, without user, password and token; only HIDDEN when nobody can say where
    in it these are. A part of a password may then look like the host or the port, so nobody's words about it are safe.
    """
    shown = _PLAIN_USERINFO.sub(HIDDEN, url)
    return HIDDEN if "@" in shown else _PLAIN_USERINFO.sub(f"{HIDDEN}@", url)


class Credentials(NamedTuple):
    """How a client shows a NATS server who it is: by user and password, or by a token."""

    user: str | None = None
    password: str | None = None
    token: str | None = None


def encoded_credentials(urls: str) -> Credentials:
    """User and password, or token, of NATS URLs with commas between, where they are percent-encoded; else nothing.

    The client takes what a URL holds as it stands, so these are decoded for it, and sent to each of the servers.

    Raises:
        ValueError: they are not the same in all URLs.
    """
    if "%" not in urls:
        return Credentials()
    named = [urlsplit(url.strip()) for url in urls.split(",")]
    found = {(unquote(url.username), url.password and unquote(url.password)) for url in named if url.username}
    if len(found) > 1:
        raise ValueError("percent-encoded credentials must be the same for all servers")
    for user, password in found:
        return Credentials(token=user) if password is None else Credentials(user, password)
    return Credentials()


def redact_command(command: Sequence[str]) -> list[str]:
    """A command line with the values of options such as --api-key hidden."""
    shown: list[str] = []
    hide_next = False
    for word in command:
        option = _SECRET_OPTION.fullmatch(word)
        if hide_next:
            shown.append(HIDDEN)
        elif option and option[2]:
            shown.append(f"{option[1]}={HIDDEN}")
        else:
            shown.append(redact(word))
        hide_next = option is not None and option[2] is None and not hide_next
    return shown
