"""Logs, metrics and the three probes, the same in every service.

Logs are structured: a fixed event name plus fields, JSON in containers and a console form on a terminal. Every line
says which service it is from, and within `log_context` which run, group and policy version it is about.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TextIO, cast

import structlog
from prometheus_client import generate_latest

from sluice.errors import ConfigError
from sluice.listening import plain
from sluice.secrets import redact

Logger = structlog.stdlib.BoundLogger
FIRST_FIELDS = ("timestamp", "level", "service", "event", "run", "group", "policy_version")
"""What a person looks for first stands first in each line."""


def configure_logging(level: str = "info", json: bool | None = None, service: str | None = None) -> None:
    """Set up structlog once per process; JSON unless standard error is a terminal.

    Args:
        service: also turn into lines of this service what libraries say through `logging`, and errors nobody caught.
    """
    as_json = not sys.stderr.isatty() if json is None else json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _StandardError())),  # a line is one write
        cache_logger_on_first_use=True,
    )
    if service is not None:
        _capture(get_logger(service))


def _rendering(as_json: bool) -> list[structlog.types.Processor]:
    """From the fields of a line to its text. What a URL holds before its host is hidden, whoever wrote the URL."""
    if as_json:
        return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer(), _redacted]
    traceback = structlog.dev.plain_traceback
    return [_in_order, structlog.dev.ConsoleRenderer(sort_keys=False, exception_formatter=traceback), _redacted]


def _redacted(logger: object, method: str, text: Any) -> str:
    return redact(str(text))


def _in_order(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: event[name] for name in (*(n for n in FIRST_FIELDS if n in event), *event)}


class _StandardError:
    """Standard error as it is at each line: whoever runs a command in-process may have put another file there."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def get_logger(service: str) -> Logger:
    """A logger whose every line names the service."""
    return cast(Logger, structlog.get_logger().bind(service=service))


@contextmanager
def log_context(*, run: str | None = None, group: int | None = None) -> Iterator[None]:
    """Within, every line of this task or thread, and of tasks that start in it, names this run and group."""
    named = {"run": run, "group": group}
    with structlog.contextvars.bound_contextvars(**{name: value for name, value in named.items() if value is not None}):
        yield


def log_policy_version(version: object) -> None:
    """From here on every line of this task or thread names this policy version."""
    structlog.contextvars.bind_contextvars(policy_version=str(version))


def _capture(log: Logger) -> None:
    """What libraries say, and what ends the process, in the same form as our own lines."""
    others = [handler for handler in logging.root.handlers if not isinstance(handler, _Bridge)]
    logging.root.handlers = [*others, _Bridge(log)]
    logging.root.setLevel(logging.WARNING)
    logging.captureWarnings(True)

    def crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("crashed", error=repr(error), exc_info=(kind, error, trace))

    sys.excepthook = crashed
    threading.excepthook = lambda caught: crashed(
        caught.exc_type, caught.exc_value or caught.exc_type(), caught.exc_traceback
    )


class _Bridge(logging.Handler):
    """A record of a library as an event of the service that uses it."""

    def __init__(self, log: Logger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(
            record.levelno, "library", library=record.name, message=record.getMessage(), exc_info=record.exc_info
        )


def instance_name(service: str) -> str:
    """Name of this process for leases, heartbeats and logs: service, host and process id."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}"


class MetricsServer:
    """Serves `/metrics`, `/healthz` (the process lives) and `/readyz` (it can do its duty) from a thread of its own."""

    def __init__(self, port: int, host: str, ready: Callable[[], bool]) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(ready))
        except OSError as error:
            raise ConfigError(
                f"SLUICE_METRICS_PORT={port} on SLUICE_METRICS_HOST={host}: {plain(error)}; choose another"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def serve_metrics(port: int, host: str = "127.0.0.1", ready: Callable[[], bool] = lambda: True) -> MetricsServer:
    """Start the metrics and probe server; port 0 takes a free one, to be read from `.port`.

    Raises:
        ConfigError: the address is in use, or not ours to take.
    """
    return MetricsServer(port, host, ready)


def _handler(ready: Callable[[], bool]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path == "/healthz":
                self._answer(200, b"ok\n", "text/plain")
            elif self.path == "/readyz":
                up = ready()
                self._answer(200 if up else 503, b"ready\n" if up else b"not ready\n", "text/plain")
            else:
                self._answer(404, b"try /metrics, /healthz or /readyz\n", "text/plain")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not news."""

    return Handler
