from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerdictKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_KIND_UNSPECIFIED: _ClassVar[VerdictKind]
    VERDICT_KIND_SCORED: _ClassVar[VerdictKind]
    VERDICT_KIND_TIMEOUT: _ClassVar[VerdictKind]
    VERDICT_KIND_ERROR: _ClassVar[VerdictKind]
VERDICT_KIND_UNSPECIFIED: VerdictKind
VERDICT_KIND_SCORED: VerdictKind
VERDICT_KIND_TIMEOUT: VerdictKind
VERDICT_KIND_ERROR: VerdictKind

class ScoreItem(_message.Message):
    __slots__ = ("id", "data_source", "prompt", "response", "ground_truth", "extra_info", "response_length")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_SOURCE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    GROUND_TRUTH_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INFO_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    id: str
    data_source: str
    prompt: str
    response: str
    ground_truth: str
    extra_info: str
    response_length: int
    def __init__(self, id: _Optional[str] = ..., data_source: _Optional[str] = ..., prompt: _Optional[str] = ..., response: _Optional[str] = ..., ground_truth: _Optional[str] = ..., extra_info: _Optional[str] = ..., response_length: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("id", "kind", "acc", "score", "extracted", "verifier", "seconds", "message")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACC_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    EXTRACTED_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: VerdictKind
    acc: float
    score: float
    extracted: str
    verifier: str
    seconds: float
    message: str
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[VerdictKind, str]] = ..., acc: _Optional[float] = ..., score: _Optional[float] = ..., extracted: _Optional[str] = ..., verifier: _Optional[str] = ..., seconds: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ScoreItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ScoreItem, _Mapping]]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ...) -> None: ...

class CheckTruthsResponse(_message.Message):
    __slots__ = ("faults",)
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, faults: _Optional[_Iterable[str]] = ...) -> None: ...

class ListVerifiersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Verifier(_message.Message):
    __slots__ = ("name", "label", "data_sources")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    DATA_SOURCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    label: str
    data_sources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., label: _Optional[str] = ..., data_sources: _Optional[_Iterable[str]] = ...) -> None: ...

class ListVerifiersResponse(_message.Message):
    __slots__ = ("verifiers", "timeout_seconds", "memory_bytes")
    VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    verifiers: _containers.RepeatedCompositeFieldContainer[Verifier]
    timeout_seconds: float
    memory_bytes: int
    def __init__(self, verifiers: _Optional[_Iterable[_Union[Verifier, _Mapping]]] = ..., timeout_seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...
