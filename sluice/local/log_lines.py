"""One line of a log as fields, whoever wrote it: our services in JSON, NATS and Valkey in their own ways."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error", "critical")
_NATS = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+) \[(\w{3})\] ?(.*)")
_VALKEY = re.compile(r"\d+:\w (\d\d \w{3} \d{4} \d\d:\d\d:\d\d\.\d+) ([.*#-]) (.*)")
_VALKEY_SIGNAL = re.compile(r"\d+:signal-handler \((\d+)\) (.*)")
_NATS_LEVELS = {"TRC": "debug", "DBG": "debug", "INF": "info", "WRN": "warning", "ERR": "error", "FTL": "critical"}
_VALKEY_LEVELS = {".": "debug", "-": "debug", "*": "info", "#": "warning"}
_LAST_LINE = re.compile(r"sluice-[a-z]+: ")


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a process said. `fields` are the other fields of a structured line, in its order."""

    at: datetime
    process: str
    level: str
    event: str
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> str | None:
        return self.fields.get("run")

    def is_about(self, group: int) -> bool:
        """Whether the line names this group, alone or with others."""
        named = self.fields.get("groups")
        return self.fields.get("group") == group or (isinstance(named, list) and group in named)


def parse_line(text: str, process: str, at: datetime, run: str | None = None) -> LogLine:
    """A line of `process`.

    Plain text counts as a warning: a service that is well does not write any; the last line of one, which says why it
    ended, counts as an error.

    Args:
        at, run: what plain text, which does not say so, is taken to be from and about.
    """
    parsed = _structured(text, process) or _foreign(text, process)
    if parsed is not None:
        return parsed
    level = "error" if _LAST_LINE.match(text) else "warning"
    return LogLine(at, process, level, text, {"run": run} if run else {})


def summary(text: str) -> str:
    """A line in the words that say what is wrong: those of its fields, if it has some."""
    line = _structured(text, "")
    if line is None:
        return text
    error = line.fields.get("error")
    return f"{line.event}: {error}" if error else line.event


def _structured(text: str, process: str) -> LogLine | None:
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
        at = datetime.fromisoformat(fields.pop("timestamp"))
        return LogLine(at, process, str(fields.pop("level")), str(fields.pop("event")), fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # braces alone do not make a line of ours


def _foreign(text: str, process: str) -> LogLine | None:
    """NATS and Valkey; the supervisor has them write in UTC."""
    if match := _NATS.fullmatch(text):
        at = datetime.strptime(match[1], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC)
        return LogLine(at, process, _NATS_LEVELS.get(match[2], "info"), match[3])
    if match := _VALKEY.fullmatch(text):
        at = datetime.strptime(match[1], "%d %b %Y %H:%M:%S.%f").replace(tzinfo=UTC)
        return LogLine(at, process, _VALKEY_LEVELS[match[2]], match[3])
    if match := _VALKEY_SIGNAL.fullmatch(text):
        return LogLine(datetime.fromtimestamp(int(match[1]), UTC), process, "info", match[2])
    return None
