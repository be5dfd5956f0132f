from sluice.wire.v1 import rollouts_pb2 as _rollouts_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvaluationPrompt(_message.Message):
    __slots__ = ("format", "version", "prompt", "seeds")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    format: int
    version: _rollouts_pb2.PolicyVersion
    prompt: _rollouts_pb2.Prompt
    seeds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, format: _Optional[int] = ..., version: _Optional[_Union[_rollouts_pb2.PolicyVersion, _Mapping]] = ..., prompt: _Optional[_Union[_rollouts_pb2.Prompt, _Mapping]] = ..., seeds: _Optional[_Iterable[int]] = ...) -> None: ...

class EvaluatedResponse(_message.Message):
    __slots__ = ("text", "length", "finish_reason", "verdict", "acc", "score", "extracted", "verifier", "seconds", "message")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ACC_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    EXTRACTED_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    text: str
    length: int
    finish_reason: str
    verdict: str
    acc: float
    score: float
    extracted: str
    verifier: str
    seconds: float
    message: str
    def __init__(self, text: _Optional[str] = ..., length: _Optional[int] = ..., finish_reason: _Optional[str] = ..., verdict: _Optional[str] = ..., acc: _Optional[float] = ..., score: _Optional[float] = ..., extracted: _Optional[str] = ..., verifier: _Optional[str] = ..., seconds: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class EvaluationGroup(_message.Message):
    __slots__ = ("format", "run_id", "version", "n", "responses", "worker", "engine", "generate_seconds", "reward_seconds", "error")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    format: int
    run_id: str
    version: _rollouts_pb2.PolicyVersion
    n: int
    responses: _containers.RepeatedCompositeFieldContainer[EvaluatedResponse]
    worker: str
    engine: str
    generate_seconds: float
    reward_seconds: float
    error: str
    def __init__(self, format: _Optional[int] = ..., run_id: _Optional[str] = ..., version: _Optional[_Union[_rollouts_pb2.PolicyVersion, _Mapping]] = ..., n: _Optional[int] = ..., responses: _Optional[_Iterable[_Union[EvaluatedResponse, _Mapping]]] = ..., worker: _Optional[str] = ..., engine: _Optional[str] = ..., generate_seconds: _Optional[float] = ..., reward_seconds: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class EvaluationBegun(_message.Message):
    __slots__ = ("version", "prompts", "responses", "settings_json")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    version: _rollouts_pb2.PolicyVersion
    prompts: int
    responses: int
    settings_json: str
    def __init__(self, version: _Optional[_Union[_rollouts_pb2.PolicyVersion, _Mapping]] = ..., prompts: _Optional[int] = ..., responses: _Optional[int] = ..., settings_json: _Optional[str] = ...) -> None: ...

class EvaluationEnded(_message.Message):
    __slots__ = ("version", "outcome", "reason", "results_json")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESULTS_JSON_FIELD_NUMBER: _ClassVar[int]
    version: _rollouts_pb2.PolicyVersion
    outcome: str
    reason: str
    results_json: str
    def __init__(self, version: _Optional[_Union[_rollouts_pb2.PolicyVersion, _Mapping]] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., results_json: _Optional[str] = ...) -> None: ...

class EvaluationRecord(_message.Message):
    __slots__ = ("format", "begun", "ended")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    format: int
    begun: EvaluationBegun
    ended: EvaluationEnded
    def __init__(self, format: _Optional[int] = ..., begun: _Optional[_Union[EvaluationBegun, _Mapping]] = ..., ended: _Optional[_Union[EvaluationEnded, _Mapping]] = ...) -> None: ...
