"""The bodies the engine answers with, in SGLang's shapes."""

import time
from typing import Any

from services.engine.request import FinishReason, Sample


def describe(sample: Sample, weight_version: str) -> dict[str, Any]:
    """A sample's answer so far: output ids and meta_info. Safe to send later: nothing in it changes any more."""
    spans = [{"version": span.version, "start": span.start, "end": span.end} for span in sample.spans]
    meta_info: dict[str, Any] = {
        "id": sample.sample_id,
        "finish_reason": None if sample.finish is None else describe_finish(sample.finish),
        "prompt_tokens": len(sample.prompt),
        "completion_tokens": len(sample.output_ids),
        "cached_tokens": sample.cached_tokens,
        "cached_tokens_details": None,
        "reasoning_tokens": 0,
        "weight_version": weight_version,
        "weight_versions": spans,
        "num_retractions": sample.num_retractions,
        "dp_rank": None,
        **_timings(sample),
    }
    if sample.return_logprob:
        meta_info |= _logprobs(sample)
    return {"output_ids": list(sample.output_ids), "meta_info": meta_info}


def describe_finish(reason: FinishReason) -> dict[str, Any]:
    """SGLang's finish_reason object."""
    if reason.type == "length":
        return {"type": "length", "length": reason.length}
    if reason.type == "stop":
        return {"type": "stop", "matched": reason.matched}
    return {"type": "abort", "message": reason.message, "status_code": None, "err_type": None}


def _logprobs(sample: Sample) -> dict[str, Any]:
    """Entries are [log-probability, token id, text], where text is null: the engine has no tokenizer."""
    outputs = [[lp, token, None] for lp, token in zip(sample.output_logprobs, sample.output_ids, strict=True)]
    inputs: list[list[Any]] = []
    if sample.score_prompt and (sample.prompt_logprobs or len(sample.prompt) == 1):
        scores = [None, *sample.prompt_logprobs]
        inputs = [[lp, token, None] for lp, token in zip(scores, sample.prompt, strict=True)]
    return {
        "input_token_logprobs": inputs,
        "output_token_logprobs": outputs,
        "output_token_logprobs_length": len(outputs),
    }


def _timings(sample: Sample) -> dict[str, float | None]:
    timing = sample.timing
    now = timing.finished or time.monotonic()
    decoding = now - timing.first_token if timing.first_token else 0.0
    return {
        "e2e_latency": now - timing.submitted,
        "first_token_latency": timing.first_token - timing.submitted if timing.first_token else None,
        "queue_time": timing.admitted - timing.submitted if timing.admitted else None,
        "decode_throughput": len(sample.output_ids) / decoding if decoding else None,
    }
