"""Secrets of a deployment: where they may come from, and how a text is shown without them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.errors import ConfigError

FILE_SUFFIX = "_FILE"
"""A secret NAME may be given as NAME_FILE, the path of a file that holds it: what Docker and Kubernetes mount."""
HIDDEN = "***"
_SECRET_OPTION = re.compile(r"(--[\w-]*(?:key|token|password|secret))(=.*)?")
_USERINFO = re.compile(r"(?<=://)[^/\s@'\"]+@")


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
