"""The body of POST /generate: what is understood, what is refused, and the samples it asks for.

Fields that SGLang knows and the engine does not compute are refused when they ask for something: ignoring them would
answer another question than the one that was put.
"""

import random
import uuid
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from services.engine.architecture import Architecture
from services.engine.kv_cache import capacity_for
from services.engine.request import Sample, SamplingParams
from services.engine.sampling import GREEDY_TEMPERATURE, mix
from services.engine.scheduler import Limits

Integer = Annotated[int, Strict()]

# Field of the body -> the values that ask for nothing.
_REFUSED_FIELDS: dict[str, tuple[Any, ...]] = {
    "text": (None,),
    "input_embeds": (None,),
    "image_data": (None,),
    "video_data": (None,),
    "audio_data": (None,),
    "top_logprobs_num": (None, 0),
    "token_ids_logprob": (None,),
    "return_sampling_mask": (None, False),
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
    "return_entropy": (None, False),
    "session_params": (None,),
    "lora_path": (None,),
    "custom_logit_processor": (None,),
}
_REFUSED_SAMPLING: dict[str, tuple[Any, ...]] = {
    "stop": (None, [], ""),
    "stop_regex": (None, [], ""),
    "min_new_tokens": (None, 0),
    "frequency_penalty": (None, 0.0),
    "presence_penalty": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "logit_bias": (None,),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "custom_params": (None,),
}
# Without a tokenizer there is no text that these could change.
_MEANINGLESS_SAMPLING = {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval"}
MAX_TOP_K = 1 << 30


class RefusedError(ValueError):
    """The request cannot be served as put; the message names the value, the limit and the knob."""


class _SamplingBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    max_new_tokens: Integer = Field(default=128, ge=0)
    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: Integer = Field(default=-1, ge=-1, le=MAX_TOP_K)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    stop_token_ids: list[Integer] | None = None
    ignore_eos: bool = False
    n: Integer = Field(default=1, ge=1)
    sampling_seed: Integer | None = None

    def params(self) -> SamplingParams:
        # SGLang's reading: temperature 0 is greedy, and greedy log-probabilities are not scaled.
        greedy = self.temperature < GREEDY_TEMPERATURE
        if self.top_k == 0:
            raise RefusedError("sampling_params.top_k is 0; send -1 for the whole vocabulary, or at least 1")
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=1.0 if greedy else self.temperature,
            top_p=self.top_p,
            top_k=1 if greedy else self.top_k,
            min_p=self.min_p,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
        )


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    input_ids: list[list[Integer]] = Field(min_length=1)
    sampling_params: list[_SamplingBody]
    rid: list[str] | str | None = None
    return_logprob: bool = False
    logprob_start_len: Integer = -1
    stream: bool = False


class GenerateRequest:
    """A validated request: its samples in the order of the answer, and the answer's form."""

    def __init__(self, body: Any, architecture: Architecture, limits: Limits) -> None:
        """Raises RefusedError when `body` cannot be served by this model within these limits."""
        parsed = _parse(body)
        self.stream = parsed.stream
        self._architecture = architecture
        self._limits = limits
        batched = isinstance(body["input_ids"][0], list)
        prompts = [tuple(prompt) for prompt in parsed.input_ids]
        wishes = parsed.sampling_params * (len(prompts) if len(parsed.sampling_params) == 1 else 1)
        if len(wishes) != len(prompts):
            raise RefusedError(f"sampling_params has {len(wishes)} entries for {len(prompts)} prompts")
        several = batched or wishes[0].n > 1
        rids = _rids(parsed.rid, len(prompts), several)
        self.is_list = several
        self.samples: list[Sample] = []
        for prompt, wish, rid in zip(prompts, wishes, rids, strict=True):
            self._check(prompt, wish)
            self.samples += _samples(prompt, wish, rid, parsed)

    def _check(self, prompt: tuple[int, ...], wish: _SamplingBody) -> None:
        vocabulary, context = self._architecture.vocab_size, self._architecture.context_length
        if not prompt:
            raise RefusedError("input_ids is empty; a prompt has at least 1 token")
        for name, ids in (("input_ids", prompt), ("stop_token_ids", wish.stop_token_ids or ())):
            outside = [token for token in ids if not 0 <= token < vocabulary]
            if outside:
                raise RefusedError(f"{name} holds {outside[0]}; the model's vocabulary is 0..{vocabulary - 1}")
        total = len(prompt) + wish.max_new_tokens
        asked = f"input_ids of {len(prompt)} tokens and max_new_tokens {wish.max_new_tokens} are {total} tokens"
        if total > context:
            raise RefusedError(f"{asked}; the model's context length is {context}: lower max_new_tokens")
        if capacity_for(total) > self._limits.max_total_tokens:
            raise RefusedError(
                f"{asked}, {capacity_for(total)} with room to grow; the cache has room for "
                f"{self._limits.max_total_tokens}: lower max_new_tokens or raise the engine's --max-total-tokens"
            )


def _parse(body: Any) -> _Body:
    if not isinstance(body, dict):
        raise RefusedError("the body of /generate is a JSON object with input_ids and sampling_params")
    _refuse(body, _REFUSED_FIELDS, "")
    ids, wishes = body.get("input_ids"), body.get("sampling_params")
    if not isinstance(ids, list) or not ids:
        raise RefusedError(f"input_ids is {ids}; it is a list of at least 1 token id, or a list of such lists")
    # One shape from here on: a list of prompts and a list of wishes.
    nested = {
        "input_ids": ids if isinstance(ids[0], list) else [ids],
        "sampling_params": wishes if isinstance(wishes, list) else [wishes or {}],
    }
    try:
        parsed = _Body.model_validate(body | nested)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RefusedError(f"{place}: {first['msg']}, got {str(first['input'])[:100]}") from error
    _refuse_unserved(parsed)
    return parsed


def _refuse_unserved(parsed: _Body) -> None:
    if parsed.logprob_start_len not in (-1, 0):
        raise RefusedError(
            f"logprob_start_len is {parsed.logprob_start_len}; the CPU engine serves -1 (output) and 0 (prompt too)"
        )
    for wish in parsed.sampling_params:
        extra = wish.model_extra or {}
        _refuse(extra, _REFUSED_SAMPLING, "sampling_params.")
        unknown = sorted(set(extra) - set(_REFUSED_SAMPLING) - _MEANINGLESS_SAMPLING)
        if unknown:
            raise RefusedError(
                f"sampling_params.{unknown[0]} is not known; known: {sorted(_SamplingBody.model_fields)}"
            )


def _refuse(given: dict[str, Any], neutral: dict[str, tuple[Any, ...]], prefix: str) -> None:
    for name, values in neutral.items():
        if given.get(name) not in values:
            raise RefusedError(f"{prefix}{name} is not supported by the CPU engine; leave it out")


def _rids(rid: list[str] | str | None, count: int, several: bool) -> list[tuple[str, str]]:
    """For each prompt the id that aborts it, and the stem of its samples' ids."""
    if isinstance(rid, list):
        if len(rid) != count:
            raise RefusedError(f"rid has {len(rid)} entries for {count} prompts")
        return [(one, one) for one in rid]
    whole = rid or uuid.uuid4().hex
    return [(whole, f"{whole}_{index}" if count > 1 else whole) for index in range(count)]


def _samples(prompt: tuple[int, ...], wish: _SamplingBody, rid: tuple[str, str], body: _Body) -> list[Sample]:
    request_id, stem = rid
    seed = random.SystemRandom().getrandbits(64) if wish.sampling_seed is None else wish.sampling_seed
    params = wish.params()
    return [
        Sample(
            sample_id=stem if wish.n == 1 else f"{stem}_{index}",
            request_id=request_id,
            prompt=prompt,
            params=params,
            seed=mix(seed, index),
            stream=body.stream,
            return_logprob=body.return_logprob,
            score_prompt=body.return_logprob and body.logprob_start_len == 0,
        )
        for index in range(wish.n)
    ]
