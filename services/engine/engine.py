"""The engine's state and what may be done to it between two steps. Single-threaded; see loop.py for the thread.

Continuous batching: a step admits waiting samples, then gives every sample in the cache its next token; the finished
leave at once. A weight update happens between steps, and each token remembers the version that sampled it.
"""

import time
from collections.abc import Callable
from pathlib import Path

from services.engine.kv_cache import KvCache
from services.engine.metrics import EngineMetrics, EngineState
from services.engine.model import Model
from services.engine.request import FinishReason, PauseMode, Sample
from services.engine.runner import Runner
from services.engine.scheduler import Limits, Scheduler


class NotIdleError(RuntimeError):
    """The command needs an engine without running samples; nothing was changed and the message says what to do."""


class Engine:
    """Model, cache, queue, pause and weight version of one engine."""

    def __init__(
        self, model: Model, limits: Limits, model_path: Path, served_model_name: str, weight_version: str
    ) -> None:
        self.weight_version = weight_version
        self.model_path = model_path
        self.served_model_name = served_model_name
        self.limits = limits
        self.state = EngineState()
        self.metrics = EngineMetrics(served_model_name, limits.max_total_tokens, lambda: self.state)
        self.model = model
        self.paused: PauseMode | None = None
        self._cache = KvCache(model.architecture, model.weights.dtype)
        self._scheduler = Scheduler(limits)
        self._runner = Runner(model, self._cache, limits.max_prefill_tokens)
        self._tokens_per_second = 0.0

    @property
    def num_running(self) -> int:
        return self._cache.num_rows

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.paused is None and bool(self._cache.num_rows or self._scheduler.num_waiting)

    def submit(self, samples: list[Sample]) -> None:
        """Queue new samples."""
        self._scheduler.submit(samples)

    def step(self, admit: bool = True) -> list[Sample]:
        """Admit (unless told not to), then decode one token a sample; returns the samples that got on or ended."""
        started = self._admit() if admit else []
        self._free_ended(started)
        self._make_room()
        decoded: list[Sample] = []
        if self._cache.num_rows:
            start = time.monotonic()
            decoded = self._runner.decode(self.weight_version)
            self._tokens_per_second = len(decoded) / (time.monotonic() - start)
            self._free_ended(decoded)
        self.refresh_state()
        return list(dict.fromkeys([*started, *decoded]))

    def _admit(self) -> list[Sample]:
        admitted = self._scheduler.admit(self._cache)
        if not admitted:
            return []
        now = time.monotonic()
        prompts: set[tuple[int, ...]] = set()
        for sample in admitted:
            sample.timing.admitted = sample.timing.admitted or now
            sample.cached_tokens = len(sample.prompt) if sample.prompt in prompts else 0
            prompts.add(sample.prompt)
        prompted, cached = sum(len(one.prompt) for one in admitted), sum(one.cached_tokens for one in admitted)
        self.metrics.cache_hit_rate.set(cached / prompted if prompted else 0.0)
        self.metrics.prefilled_tokens.inc(self._runner.prefill(admitted, self.weight_version))
        return admitted

    def _free_ended(self, samples: list[Sample]) -> None:
        eos = self.model.architecture.eos_token_ids
        ended = {one for one in samples if one.finish is not None or one.check_finished(eos)}
        self._cache.remove(ended)
        for sample in ended:
            self.metrics.record_end(sample)

    def _make_room(self) -> None:
        victims = self._scheduler.choose_victims(self._cache)
        self._cache.remove(set(victims))
        self._requeue(victims)
        self._cache.grow_full_rows()

    def _requeue(self, samples: list[Sample]) -> None:
        self._scheduler.requeue(samples)
        self.metrics.num_retracted_reqs.inc(len(samples))

    def pause(self, mode: PauseMode) -> list[Sample]:
        """Stop stepping until `resume`; returns the samples it ended.

        `abort` ends every sample with what it has; `retract` takes the rows away, to be recomputed under whatever
        weights serve later; `in_place` keeps the rows, stale as they may become.
        """
        aborted = self.abort(lambda sample: True, "Aborted by pause_generation") if mode == "abort" else []
        if mode == "retract":
            self._requeue(self._cache.clear())
        self.paused = mode
        self.refresh_state()
        return aborted

    def resume(self) -> None:
        """Go on after `pause`."""
        self.paused = None
        self.refresh_state()

    def abort(self, matches: Callable[[Sample], bool], message: str = "Aborted") -> list[Sample]:
        """End the running and waiting samples that match, with the tokens they have; returns them."""
        running = [one for arena in self._cache.arenas for one in arena.samples if matches(one)]
        self._cache.remove(set(running))
        aborted = running + self._scheduler.withdraw(matches)
        for sample in aborted:
            sample.end(FinishReason("abort", message=message))
            self.metrics.record_end(sample)
        self.refresh_state()
        return aborted

    def flush_cache(self) -> None:
        """Succeed if nothing is cached: rows are the only cache, and they belong to running samples.

        Raises NotIdleError while samples run, or wait without a pause.
        """
        waiting = self._scheduler.num_waiting if self.paused is None else 0
        if self._cache.num_rows or waiting:
            raise NotIdleError(
                f"cannot flush the cache: {self._cache.num_rows} samples run and {waiting} wait; "
                f"pause with mode abort or retract first"
            )

    def update_weights(self, directory: Path, version: str | None, flush: bool) -> str:
        """Replace all weights by the shards in `directory`; returns a message for people.

        Raises WeightsError or NotIdleError, in both cases with the old weights and version untouched.
        """
        if flush and self._cache.num_rows:
            raise NotIdleError(
                f"{self._cache.num_rows} samples hold keys and values of the old weights: pause with mode retract, "
                f"or send flush_cache=false to go on with them"
            )
        start = time.monotonic()
        self.model.weights.load(directory)
        seconds = time.monotonic() - start
        self.metrics.weight_load.observe(seconds)
        self.model_path = directory
        if version is not None:
            self.weight_version = version
        return f"Succeeded to update model weights in {seconds:.3f} s; weight_version is {self.weight_version}."

    def set_weight_version(self, version: str) -> None:
        """Name the present weights; later tokens carry the name."""
        self.weight_version = version

    def refresh_state(self) -> None:
        """Publish what other threads may read, as one immutable object."""
        rows, waiting = self._cache.num_rows, self._scheduler.num_waiting
        self.state = EngineState(
            num_running=rows,
            num_waiting=waiting,
            num_paused=rows + waiting if self.paused else 0,
            reserved_tokens=self._cache.reserved_tokens,
            used_tokens=self._cache.used_tokens,
            tokens_per_second=self._tokens_per_second if rows else 0.0,
            paused=self.paused,
        )
