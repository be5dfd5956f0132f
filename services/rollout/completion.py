"""What the engine answers to /generate, read strictly: tokens without their own log-probs and versions are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.errors import TransientError
from sluice.packed import LogProbs, TokenIds
from sluice.transport.engine import EngineRefusedError
from sluice.types import FinishReason, PolicyVersion, VersionSpan, spans_cover


class EngineUnfinishedError(TransientError):
    """Somebody aborted the request: what came back is no rollout. Does not count."""


class ForeignWeightsError(TransientError):
    """Tokens of weights that are not ours: the engine was restarted or reloaded behind our back. Does not count."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One response: [T] tokens, their log-probs in nats under the sampling temperature, and who sampled them."""

    token_ids: TokenIds
    logprobs: LogProbs
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    version: PolicyVersion
    """What the engine served at the end: all there is to say about a response without tokens."""

    @property
    def oldest_version(self) -> PolicyVersion:
        return min((span.version for span in self.spans), default=self.version)

    @property
    def newest_version(self) -> PolicyVersion:
        return max((span.version for span in self.spans), default=self.version)


def read_completions(answer: Any, count: int) -> list[Completion]:
    """The `count` completions of one request, in order.

    Raises:
        EngineRefusedError: the answer breaks SGLang's contract, or a sample ended in an error.
        EngineUnfinishedError: a sample was aborted.
        ForeignWeightsError: a sample was drawn from weights that are no policy version.
    """
    samples = answer if isinstance(answer, list) else [answer]
    if len(samples) != count:
        raise EngineRefusedError(f"engine answered {len(samples)} samples, asked for {count}")
    try:
        return [_read(sample) for sample in samples]
    except (KeyError, TypeError, IndexError, OverflowError) as error:
        raise EngineRefusedError(f"engine answer lacks what a rollout needs: {error!r}") from None


def _read(sample: dict[str, Any]) -> Completion:
    meta = sample["meta_info"]
    reason = _finish_reason(meta["finish_reason"])
    tokens = TokenIds(sample["output_ids"])
    entries = meta.get("output_token_logprobs") or []
    if TokenIds([entry[1] for entry in entries]) != tokens:
        raise EngineRefusedError(
            f"engine answered {len(tokens)} tokens with log-probs of {len(entries)} tokens; they must be the same ones"
        )
    logprobs = LogProbs([entry[0] for entry in entries])
    return Completion(tokens, logprobs, reason, _spans(meta, len(tokens)), _version(meta["weight_version"]))


def _finish_reason(reason: dict[str, Any] | None) -> FinishReason:
    kind = None if reason is None else reason["type"]
    if kind in (FinishReason.STOP, FinishReason.LENGTH):
        return FinishReason(kind)
    if kind != "abort" or reason is None:
        raise EngineRefusedError(f"engine answered finish reason {reason!r}; stop, length and abort are known")
    text = f"engine aborted the request: {reason.get('message')!r}"
    if reason.get("err_type") or int(reason.get("status_code") or 0) >= 400:
        raise EngineRefusedError(text)
    raise EngineUnfinishedError(text)


def _spans(meta: dict[str, Any], length: int) -> tuple[VersionSpan, ...]:
    """Neighbouring spans of one version become one; together they must cover the tokens."""
    spans: list[VersionSpan] = []
    for raw in meta.get("weight_versions") or []:
        start, end = int(raw["start"]), int(raw["end"])
        if start == end:
            continue
        version = _version(raw["version"])
        if spans and spans[-1].version == version and spans[-1].end == start:
            start = spans.pop().start
        spans.append(VersionSpan(version, start, end))
    if not spans_cover(spans, length):
        raise EngineRefusedError(
            f"engine names weight versions for {[(s.start, s.end) for s in spans]} of {length} tokens; "
            "it must cover all of them (SGLang 0.5.23 does)"
        )
    return tuple(spans)


def _version(text: Any) -> PolicyVersion:
    try:
        return PolicyVersion.parse(str(text))
    except ValueError:
        raise ForeignWeightsError(f"engine sampled from weight version {text!r}, which is no policy version") from None
