"""What the engine is asked for and what it has made so far: one Sample is one completion of one prompt."""

import time
from dataclasses import dataclass, field
from typing import Literal

PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True)
class SamplingParams:
    """How one completion is drawn; the names are SGLang's. `top_k` -1 and `top_p` 1 mean the whole distribution."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop_token_ids: frozenset[int]
    ignore_eos: bool

    @property
    def greedy(self) -> bool:
        return self.top_k == 1

    @property
    def whole_distribution(self) -> bool:
        return self.top_p >= 1.0 and self.top_k == -1 and self.min_p <= 0.0


@dataclass(frozen=True)
class FinishReason:
    """Why a sample ended: `length` at its limit, `stop` at a token (`matched`), `abort` with a message."""

    type: Literal["length", "stop", "abort"]
    length: int = 0
    matched: int = 0
    message: str = ""


@dataclass
class VersionSpan:
    """Output tokens start..end (half open) were sampled under weight version `version`."""

    version: str
    start: int
    end: int


@dataclass
class Timing:
    """Moments on the monotonic clock, in seconds; 0 means not yet."""

    submitted: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(eq=False)
class Sample:
    """One completion in the making. Only the engine's thread changes it after submission.

    Invariant while the sample has a row in the cache: keys and values of the first `kv_length` tokens of
    prompt + output are there, and `kv_length` is one less than the number of those tokens, because the newest
    token's are computed by the step that uses it.
    """

    sample_id: str
    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    stream: bool = False
    return_logprob: bool = False
    score_prompt: bool = False
    prompt_logprobs: list[float] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    kv_length: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    finish: FinishReason | None = None
    timing: Timing = field(default_factory=Timing)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output_ids)

    @property
    def max_tokens(self) -> int:
        """The most tokens the sample can come to."""
        return len(self.prompt) + self.params.max_new_tokens

    def append(self, token_id: int, logprob: float, version: str) -> None:
        """Take a sampled token, made under weight version `version`."""
        start = len(self.output_ids)
        self.output_ids.append(token_id)
        self.output_logprobs.append(logprob)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1].end = start + 1
        else:
            self.spans.append(VersionSpan(version, start, start + 1))
        if start == 0:
            self.timing.first_token = time.monotonic()

    def check_finished(self, eos_token_ids: frozenset[int]) -> bool:
        """Set `finish` if the newest token ends the sample. As in SGLang, the length limit is looked at first and
        `ignore_eos` switches off the request's own stop tokens too."""
        newest = self.output_ids[-1]
        if len(self.output_ids) >= self.params.max_new_tokens:
            self.end(FinishReason("length", length=self.params.max_new_tokens))
        elif not self.params.ignore_eos and (newest in self.params.stop_token_ids or newest in eos_token_ids):
            self.end(FinishReason("stop", matched=newest))
        return self.finish is not None

    def end(self, reason: FinishReason) -> None:
        self.finish = reason
        self.timing.finished = time.monotonic()
