"""Logs, metrics and the three probes, the same in every service.

Logs are structured: a fixed event name plus fields, JSON in containers and a console form on a terminal.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TextIO, cast

import structlog
from prometheus_client import generate_latest

Logger = structlog.stdlib.BoundLogger


def configure_logging(level: str = "info", json: bool | None = None) -> None:
    """Set up structlog once per process; JSON unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _StandardError())),
        cache_logger_on_first_use=True,
    )


class _StandardError:
    """Standard error as it is at each line: whoever runs a command in-process may have put another file there."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def get_logger(service: str) -> Logger:
    """A logger whose every line names the service."""
    return cast(Logger, structlog.get_logger().bind(service=service))


def instance_name(service: str) -> str:
    """Name of this process for leases, heartbeats and logs: service, host and process id."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}"


class MetricsServer:
    """Serves `/metrics`, `/healthz` (the process lives) and `/readyz` (it can do its duty) from a thread of its own."""

    def __init__(self, port: int, host: str, ready: Callable[[], bool]) -> None:
        handler = _handler(ready)
        self._server = ThreadingHTTPServer((host, port), handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def serve_metrics(port: int, host: str = "127.0.0.1", ready: Callable[[], bool] = lambda: True) -> MetricsServer:
    """Start the metrics and probe server; port 0 takes a free one, to be read from `.port`."""
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
