"""The bridge between the engine's thread and the HTTP server's: who waits for which sample."""

import asyncio
from typing import Any

from services.engine.engine import Engine
from services.engine.loop import EngineLoop
from services.engine.request import Sample
from services.engine.responses import describe

Answer = tuple[dict[str, Any], bool]


class Completions:
    """Hands samples to the engine and its answers to the waiting requests. Made and used on the event loop."""

    def __init__(self, engine: Engine) -> None:
        self.loop = EngineLoop(engine, self._publish)
        self._engine = engine
        self._events = asyncio.get_running_loop()
        self._waiting: dict[Sample, asyncio.Queue[Answer]] = {}

    def start(self, samples: list[Sample]) -> None:
        """Give the samples to the engine; their answers are kept from now on."""
        for sample in samples:
            self._waiting[sample] = asyncio.Queue()
        self.loop.submit(samples)

    async def next_answer(self, sample: Sample) -> Answer:
        """The newest answer of a started sample, and whether it is the last. Waits for one."""
        queue = self._waiting[sample]
        answer = await queue.get()
        while not queue.empty():
            answer = queue.get_nowait()
        return answer

    async def last_answer(self, sample: Sample) -> dict[str, Any]:
        """The answer of a started sample once it has ended."""
        while True:
            answer, ended = await self.next_answer(sample)
            if ended:
                return answer

    def forget(self, samples: list[Sample]) -> None:
        """Nobody waits for the samples any more: those still going on are aborted."""
        for sample in samples:
            self._waiting.pop(sample, None)
        gone = {sample for sample in samples if sample.finish is None}
        if gone:
            self.loop.call_and_report(lambda: self._engine.abort(lambda one: one in gone, "The client disconnected"))

    def _publish(self, samples: list[Sample]) -> None:
        """On the engine's thread. The answers are made here, where no sample can change meanwhile."""
        version = self._engine.weight_version
        news = [(sample, (describe(sample, version), sample.finish is not None)) for sample in samples]
        self._events.call_soon_threadsafe(self._deliver, news)

    def _deliver(self, news: list[tuple[Sample, Answer]]) -> None:
        for sample, answer in news:
            if sample in self._waiting:
                self._waiting[sample].put_nowait(answer)
