"""Who runs next: first come, first served, within the limits on rows and cached tokens. No tensors here."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.engine.kv_cache import KvCache, capacity_for
from services.engine.request import Sample


@dataclass(frozen=True)
class Limits:
    """The engine's bounds: samples decoded together, tokens with room in the cache, tokens prefilled in one go."""

    max_running_requests: int
    max_total_tokens: int
    max_prefill_tokens: int


class Scheduler:
    """The waiting queue, and the choice of what enters and, when the cache is full, what leaves the cache."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[Sample] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(self, samples: Iterable[Sample]) -> None:
        """Queue new samples behind all others. Each must fit the cache by itself (validated at the HTTP edge)."""
        self._waiting.extend(samples)

    def requeue(self, samples: Iterable[Sample]) -> None:
        """Put samples that lost their rows back in front, oldest first; their tokens are kept and replayed later."""
        for sample in sorted(samples, key=_age, reverse=True):
            sample.kv_length = 0
            sample.num_retractions += 1
            self._waiting.appendleft(sample)

    def withdraw(self, matches: Callable[[Sample], bool]) -> list[Sample]:
        """Take the waiting samples that match out of the queue."""
        withdrawn = [sample for sample in self._waiting if matches(sample)]
        self._waiting = deque(sample for sample in self._waiting if not matches(sample))
        return withdrawn

    def admit(self, cache: KvCache) -> list[Sample]:
        """Take from the front of the queue what fits now.

        Samples of one prompt count its prefill once, because they share it.
        """
        admitted: list[Sample] = []
        prompts: set[tuple[int, ...]] = set()
        rows, reserved, prefill = cache.num_rows, cache.reserved_tokens, 0
        while self._waiting and rows < self._limits.max_running_requests:
            sample = self._waiting[0]
            capacity = capacity_for(sample.num_tokens)
            tokens = len(sample.output_ids) + (0 if sample.prompt in prompts else len(sample.prompt))
            if reserved + capacity > self._limits.max_total_tokens:
                break
            if admitted and prefill + tokens > self._limits.max_prefill_tokens:
                break
            admitted.append(self._waiting.popleft())
            prompts.add(sample.prompt)
            rows, reserved, prefill = rows + 1, reserved + capacity, prefill + tokens
        return admitted

    def choose_victims(self, cache: KvCache) -> list[Sample]:
        """The youngest running samples that must leave so that the rest can grow by a token. Never the oldest."""
        excess = cache.reserved_tokens + cache.tokens_to_grow() - self._limits.max_total_tokens
        victims: list[Sample] = []
        if excess <= 0:
            return victims
        rows = [(sample, arena.capacity) for arena in cache.arenas for sample in arena.samples]
        rows.sort(key=lambda row: _age(row[0]))
        while excess > 0 and len(rows) > 1:
            sample, capacity = rows.pop()
            victims.append(sample)
            excess -= 2 * capacity if sample.kv_length >= capacity else capacity
        return victims


def _age(sample: Sample) -> float:
    return sample.timing.submitted
