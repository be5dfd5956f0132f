from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PolicyVersion(_message.Message):
    __slots__ = ("number", "lineage")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    lineage: int
    def __init__(self, number: _Optional[int] = ..., lineage: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_new_tokens", "temperature", "top_p", "top_k", "stop_token_ids")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("format", "run_id", "n", "index", "epoch", "token_ids", "text", "ground_truth", "data_source", "extra_info", "group_size", "sampling", "seed", "min_version")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    GROUND_TRUTH_FIELD_NUMBER: _ClassVar[int]
    DATA_SOURCE_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INFO_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    format: int
    run_id: str
    n: int
    index: int
    epoch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    ground_truth: str
    data_source: str
    extra_info: str
    group_size: int
    sampling: Sampling
    seed: int
    min_version: int
    def __init__(self, format: _Optional[int] = ..., run_id: _Optional[str] = ..., n: _Optional[int] = ..., index: _Optional[int] = ..., epoch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., ground_truth: _Optional[str] = ..., data_source: _Optional[str] = ..., extra_info: _Optional[str] = ..., group_size: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., min_version: _Optional[int] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("version", "start", "end")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    version: PolicyVersion
    start: int
    end: int
    def __init__(self, version: _Optional[_Union[PolicyVersion, _Mapping]] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("format", "run_id", "n", "attempt", "i", "prompt_token_ids", "token_ids", "logprobs", "finish_reason", "spans", "prompt_token_planes", "token_planes", "packed_logprobs", "sizes")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_PLANES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_PLANES_FIELD_NUMBER: _ClassVar[int]
    PACKED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    format: int
    run_id: str
    n: int
    attempt: str
    i: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    finish_reason: str
    spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    prompt_token_planes: bytes
    token_planes: bytes
    packed_logprobs: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, format: _Optional[int] = ..., run_id: _Optional[str] = ..., n: _Optional[int] = ..., attempt: _Optional[str] = ..., i: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., finish_reason: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., prompt_token_planes: _Optional[bytes] = ..., token_planes: _Optional[bytes] = ..., packed_logprobs: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class RolloutSummary(_message.Message):
    __slots__ = ("sequences", "content_hash", "verdict", "acc", "score", "shaping", "length", "finish_reason", "oldest_version", "newest_version", "spans", "offset", "nbytes")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ACC_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SHAPING_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    content_hash: bytes
    verdict: str
    acc: float
    score: float
    shaping: float
    length: int
    finish_reason: str
    oldest_version: PolicyVersion
    newest_version: PolicyVersion
    spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    offset: int
    nbytes: int
    def __init__(self, sequences: _Optional[_Iterable[int]] = ..., content_hash: _Optional[bytes] = ..., verdict: _Optional[str] = ..., acc: _Optional[float] = ..., score: _Optional[float] = ..., shaping: _Optional[float] = ..., length: _Optional[int] = ..., finish_reason: _Optional[str] = ..., oldest_version: _Optional[_Union[PolicyVersion, _Mapping]] = ..., newest_version: _Optional[_Union[PolicyVersion, _Mapping]] = ..., spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("format", "run_id", "n", "attempt", "status", "rollouts", "worker", "engine", "min_version", "generate_seconds", "reward_seconds", "sample_text", "error")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_TEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    format: int
    run_id: str
    n: int
    attempt: str
    status: str
    rollouts: _containers.RepeatedCompositeFieldContainer[RolloutSummary]
    worker: str
    engine: str
    min_version: int
    generate_seconds: float
    reward_seconds: float
    sample_text: str
    error: str
    def __init__(self, format: _Optional[int] = ..., run_id: _Optional[str] = ..., n: _Optional[int] = ..., attempt: _Optional[str] = ..., status: _Optional[str] = ..., rollouts: _Optional[_Iterable[_Union[RolloutSummary, _Mapping]]] = ..., worker: _Optional[str] = ..., engine: _Optional[str] = ..., min_version: _Optional[int] = ..., generate_seconds: _Optional[float] = ..., reward_seconds: _Optional[float] = ..., sample_text: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...
