"""The engine's metrics, under the names SGLang gives them, so that one dashboard reads both."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from services.engine.request import Sample

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


@dataclass(frozen=True)
class EngineState:
    """What the engine's thread was doing after its last step."""

    num_running: int = 0
    num_waiting: int = 0
    num_paused: int = 0
    reserved_tokens: int = 0
    used_tokens: int = 0
    tokens_per_second: float = 0.0
    paused: str | None = None


class EngineMetrics:
    """All metrics of one engine, in a registry of its own, labelled with the model's name as SGLang's are."""

    def __init__(self, model_name: str, max_total_tokens: int, state: Callable[[], EngineState]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._model_name = model_name
        self._gauge("num_running_reqs", "Samples decoded together", lambda: state().num_running)
        self._gauge("num_queue_reqs", "Samples waiting for a row in the cache", lambda: state().num_waiting)
        self._gauge("num_paused_reqs", "Samples held by a pause", lambda: state().num_paused)
        self._gauge("kv_used_tokens", "Tokens with keys and values in the cache", lambda: state().used_tokens)
        self._gauge(
            "token_usage",
            "Share of the cache's tokens that rows in use have room for",
            lambda: state().reserved_tokens / max_total_tokens,
        )
        self.cache_hit_rate = self._plain_gauge(
            "cache_hit_rate", "Share of the last prefill's prompt tokens that another sample's prefill had computed"
        )
        self._gauge("gen_throughput", "Tokens a second in the last decode step", lambda: state().tokens_per_second)
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished samples")
        self.generation_tokens = self._counter("generation_tokens", "Output tokens of finished samples")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens taken from another sample's prefill")
        self.prefilled_tokens = self._counter("prefilled_tokens", "Prompt tokens computed")
        self.num_requests = self._counter("num_requests", "Finished samples")
        self.num_aborted_requests = self._counter("num_aborted_requests", "Samples ended by an abort")
        self.num_retracted_reqs = self._counter("num_retracted_reqs", "Samples that lost their row and came back")
        self._queue = self._histogram("queue_time_seconds", "From submission to the cache")
        self._first = self._histogram("time_to_first_token_seconds", "From submission to the first token")
        self._whole = self._histogram("e2e_request_latency_seconds", "From submission to the end")
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Between output tokens")
        self.weight_load = self._histogram("weight_load_duration_seconds", "Reading and placing a set of weights")
        self.startup = self._plain_gauge("startup_time_seconds", "From the process's start to readiness")
        self.http_requests = Counter(
            "sglang:http_requests", "HTTP requests by route", ["endpoint", "method"], registry=self.registry
        )
        self.http_active = Gauge(
            "sglang:http_requests_active", "HTTP requests without a whole answer yet", registry=self.registry
        )
        self.http_responses = Counter(
            "sglang:http_responses", "HTTP responses by status", ["status_code"], registry=self.registry
        )

    def _plain_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"sglang:{name}", text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._plain_gauge(name, text).set_function(value)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"sglang:{name}", text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(f"sglang:{name}", text, ["model_name"], buckets=_SECONDS, registry=self.registry)
        return histogram.labels(self._model_name)

    def record_end(self, sample: Sample) -> None:
        """Count a sample that has ended, aborted ones included."""
        timing = sample.timing
        tokens = len(sample.output_ids)
        self.num_requests.inc()
        self.prompt_tokens.inc(len(sample.prompt))
        self.cached_tokens.inc(sample.cached_tokens)
        self.generation_tokens.inc(tokens)
        self._whole.observe(timing.finished - timing.submitted)
        if sample.finish is not None and sample.finish.type == "abort":
            self.num_aborted_requests.inc()
        if timing.admitted:
            self._queue.observe(timing.admitted - timing.submitted)
        if timing.first_token:
            self._first.observe(timing.first_token - timing.submitted)
        if tokens > 1:
            self._per_token.observe((timing.finished - timing.first_token) / (tokens - 1))
