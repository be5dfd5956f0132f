"""The command line: a thin skin over the REST API, the local stack and the offline tools."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pydantic import ValidationError
from typer import BadParameter
from typer.exceptions import Exit, TyperException

from sluice.errors import ConfigError, SluiceError
from sluice.faults import in_plain_words
from sluice.secrets import redact
from sluice.telemetry import configure_logging

COMMANDS = {"GET /v1/runs lists": "`sluice runs` lists"}
"""Requests that the API's errors advise, by the commands that make them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 the user has to change something, 130 interrupted.

    Whatever is the user's to mend is one line on standard error, never a traceback.
    """
    from sluice.cli.app import app

    configure_logging("warning")  # to standard error: standard output is what the user asked for
    try:
        result = app(args=arguments, prog_name="sluice", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        return 130
    except TyperException as error:
        return _say(f"{_fault_of_arguments(error)}; `sluice --help` shows what there is", error.exit_code)
    except ConfigError as error:
        return _say(_in_commands(str(error)), 2)
    except SluiceError as error:
        return _say(str(error), 1)


def _fault_of_arguments(error: TyperException) -> str:
    """What is wrong with the command line; about a value, in the words that are used of a run file's values."""
    cause = error.__cause__
    if isinstance(error, BadParameter) and isinstance(cause, ValidationError) and error.param is not None:
        first = cause.errors()[0]
        return f"{(error.param.opts or [error.param.name])[0]} = {first['input']}: {in_plain_words(first)}"
    return error.format_message().rstrip(".")


def _in_commands(text: str) -> str:
    for request, command in COMMANDS.items():
        text = text.replace(request, command)
    return text


def _say(message: str, code: int) -> int:
    print(f"sluice: {redact(' '.join(message.split()))}", file=sys.stderr)
    return code
