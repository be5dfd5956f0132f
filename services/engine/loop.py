"""The engine's main loop, on a thread of its own so that the HTTP server stays responsive.

consumes:     samples and commands, handed over by the HTTP server's thread
produces:     progress: the samples that ended, and each new token of streamed ones, to the `publish` callback
waits for:    a sample or a command, when there is nothing to decode or a pause holds everything
unblocked by: `submit`, `call` and `stop`, from any thread
on failure:   a command's error goes back to its caller; an error of a step ends the loop, `failure` keeps it and the
              process exits, because samples and cache may then disagree
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from services.engine.engine import Engine
from services.engine.request import Sample

Publish = Callable[[list[Sample]], None]


@dataclass(frozen=True)
class _Command:
    action: Callable[[], Any]
    answer: "Future[Any]"
    drains: bool

    def obey(self) -> None:
        try:
            self.answer.set_result(self.action())
        except Exception as error:  # a command's edge: every error belongs to whoever gave it
            self.answer.set_exception(error)


class EngineLoop:
    """Runs an Engine step by step and lets other threads talk to it between steps."""

    def __init__(self, engine: Engine, publish: Publish) -> None:
        self.failure: BaseException | None = None
        self._engine = engine
        self._publish = publish
        self._stopping = False
        self._draining: deque[_Command] = deque()
        self._inbox: deque[_Command] = deque()
        self._wake = threading.Condition()

    def run(self) -> None:
        """Step while there is work; returns after `stop`. Raises what a step raised."""
        try:
            while not self._stopping:
                self._wait_for_work()
                self._obey_commands()
                if self._engine.has_work:
                    self._report(self._engine.step(admit=not self._draining))
        except BaseException as error:
            self.failure = error
            raise

    def submit(self, samples: list[Sample]) -> None:
        """Queue samples; their progress is published. Returns at once."""
        self.call(lambda: self._engine.submit(samples))

    def call(self, action: Callable[[], Any], drains: bool = False) -> "Future[Any]":
        """Run `action` between two steps; the future gets its result or error.

        With `drains` it runs once no sample is running, and none is admitted before. A pause in place would keep
        it from ever draining, so then it runs at once.
        """
        command = _Command(action, Future(), drains)
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()
        return command.answer

    def call_and_report(self, action: Callable[[], list[Sample]]) -> "Future[Any]":
        """As `call`, for an action that ends samples: their end is published, and the result is their number."""

        def act() -> int:
            ended = action()
            self._report(ended)
            return len(ended)

        return self.call(act)

    def stop(self) -> None:
        """Let `run` return after the present step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def _wait_for_work(self) -> None:
        with self._wake:
            while not (self._stopping or self._inbox or self._drained or self._engine.has_work):
                self._wake.wait()

    def _obey_commands(self) -> None:
        with self._wake:
            commands, self._inbox = self._inbox, deque()
        for command in commands:
            if command.drains:
                self._draining.append(command)
            else:
                command.obey()
        while self._drained:
            self._draining.popleft().obey()

    @property
    def _drained(self) -> bool:
        """Whether a draining command may run now."""
        idle = self._engine.num_running == 0 or self._engine.paused == "in_place"
        return bool(self._draining) and idle

    def _report(self, samples: list[Sample]) -> None:
        news = [sample for sample in samples if sample.finish is not None or sample.stream]
        if news:
            self._publish(news)
