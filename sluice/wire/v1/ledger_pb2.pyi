from sluice.wire.v1 import rollouts_pb2 as _rollouts_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Origin(_message.Message):
    __slots__ = ("run_id", "checkpoint", "again", "next_draw")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    NEXT_DRAW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    checkpoint: Checkpoint
    again: _containers.RepeatedScalarFieldContainer[int]
    next_draw: int
    def __init__(self, run_id: _Optional[str] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., again: _Optional[_Iterable[int]] = ..., next_draw: _Optional[int] = ...) -> None: ...

class RunCreated(_message.Message):
    __slots__ = ("run_id", "spec_json", "config_hash", "data_json", "origin")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    spec_json: str
    config_hash: str
    data_json: str
    origin: Origin
    def __init__(self, run_id: _Optional[str] = ..., spec_json: _Optional[str] = ..., config_hash: _Optional[str] = ..., data_json: _Optional[str] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("coordinator",)
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    coordinator: str
    def __init__(self, coordinator: _Optional[str] = ...) -> None: ...

class Floors(_message.Message):
    __slots__ = ("groups", "rollouts")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    groups: int
    rollouts: int
    def __init__(self, groups: _Optional[int] = ..., rollouts: _Optional[int] = ...) -> None: ...

class Issue(_message.Message):
    __slots__ = ("first", "count", "version", "floors", "skipped")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    version: int
    floors: Floors
    skipped: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ..., version: _Optional[int] = ..., floors: _Optional[_Union[Floors, _Mapping]] = ..., skipped: _Optional[_Iterable[int]] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("groups", "reason", "error")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    error: str
    def __init__(self, groups: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class BatchGroup(_message.Message):
    __slots__ = ("n", "attempt", "version", "groups_sequence", "rollouts")
    N_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    n: int
    attempt: str
    version: int
    groups_sequence: int
    rollouts: _containers.RepeatedCompositeFieldContainer[_rollouts_pb2.RolloutSummary]
    def __init__(self, n: _Optional[int] = ..., attempt: _Optional[str] = ..., version: _Optional[int] = ..., groups_sequence: _Optional[int] = ..., rollouts: _Optional[_Iterable[_Union[_rollouts_pb2.RolloutSummary, _Mapping]]] = ...) -> None: ...

class DroppedGroup(_message.Message):
    __slots__ = ("n", "reason")
    N_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    n: int
    reason: str
    def __init__(self, n: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Tally(_message.Message):
    __slots__ = ("issued", "trained", "dropped", "scored_groups", "kept_groups")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    SCORED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    KEPT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    issued: int
    trained: int
    dropped: _containers.ScalarMap[str, int]
    scored_groups: int
    kept_groups: int
    def __init__(self, issued: _Optional[int] = ..., trained: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., scored_groups: _Optional[int] = ..., kept_groups: _Optional[int] = ...) -> None: ...

class SamplingStats(_message.Message):
    __slots__ = ("groups", "rollouts", "reward_sum", "acc_sum", "length_sum", "truncated", "tokens")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    REWARD_SUM_FIELD_NUMBER: _ClassVar[int]
    ACC_SUM_FIELD_NUMBER: _ClassVar[int]
    LENGTH_SUM_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    groups: int
    rollouts: int
    reward_sum: float
    acc_sum: float
    length_sum: int
    truncated: int
    tokens: int
    def __init__(self, groups: _Optional[int] = ..., rollouts: _Optional[int] = ..., reward_sum: _Optional[float] = ..., acc_sum: _Optional[float] = ..., length_sum: _Optional[int] = ..., truncated: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("k", "groups", "dropped", "next_n", "live", "floors", "tally", "sampled", "version", "groups_seen", "skipped")
    K_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    NEXT_N_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    TALLY_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_SEEN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    k: int
    groups: _containers.RepeatedCompositeFieldContainer[BatchGroup]
    dropped: _containers.RepeatedCompositeFieldContainer[DroppedGroup]
    next_n: int
    live: _containers.RepeatedCompositeFieldContainer[Issue]
    floors: Floors
    tally: Tally
    sampled: SamplingStats
    version: int
    groups_seen: int
    skipped: int
    def __init__(self, k: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[BatchGroup, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[DroppedGroup, _Mapping]]] = ..., next_n: _Optional[int] = ..., live: _Optional[_Iterable[_Union[Issue, _Mapping]]] = ..., floors: _Optional[_Union[Floors, _Mapping]] = ..., tally: _Optional[_Union[Tally, _Mapping]] = ..., sampled: _Optional[_Union[SamplingStats, _Mapping]] = ..., version: _Optional[int] = ..., groups_seen: _Optional[int] = ..., skipped: _Optional[int] = ...) -> None: ...

class StateChange(_message.Message):
    __slots__ = ("state", "reason", "fields_json")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELDS_JSON_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    fields_json: str
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., fields_json: _Optional[str] = ...) -> None: ...

class LedgerRecord(_message.Message):
    __slots__ = ("format", "run_created", "claim", "issue", "drop", "batch", "state_change")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RUN_CREATED_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    ISSUE_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    format: int
    run_created: RunCreated
    claim: Claim
    issue: Issue
    drop: Drop
    batch: Batch
    state_change: StateChange
    def __init__(self, format: _Optional[int] = ..., run_created: _Optional[_Union[RunCreated, _Mapping]] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ..., issue: _Optional[_Union[Issue, _Mapping]] = ..., drop: _Optional[_Union[Drop, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., state_change: _Optional[_Union[StateChange, _Mapping]] = ...) -> None: ...

class Lineage(_message.Message):
    __slots__ = ("lineage", "trainer", "restored")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    trainer: str
    restored: int
    def __init__(self, lineage: _Optional[int] = ..., trainer: _Optional[str] = ..., restored: _Optional[int] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version", "uri", "manifest_hash", "chain")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    version: _rollouts_pb2.PolicyVersion
    uri: str
    manifest_hash: str
    chain: str
    def __init__(self, version: _Optional[_Union[_rollouts_pb2.PolicyVersion, _Mapping]] = ..., uri: _Optional[str] = ..., manifest_hash: _Optional[str] = ..., chain: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("k", "lineage", "path", "checksum", "chain")
    K_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    k: int
    lineage: int
    path: str
    checksum: str
    chain: str
    def __init__(self, k: _Optional[int] = ..., lineage: _Optional[int] = ..., path: _Optional[str] = ..., checksum: _Optional[str] = ..., chain: _Optional[str] = ...) -> None: ...

class TrainingFailed(_message.Message):
    __slots__ = ("lineage", "reason")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    reason: str
    def __init__(self, lineage: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class TrainerRecord(_message.Message):
    __slots__ = ("format", "lineage", "version", "checkpoint", "training_failed")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FAILED_FIELD_NUMBER: _ClassVar[int]
    format: int
    lineage: Lineage
    version: Version
    checkpoint: Checkpoint
    training_failed: TrainingFailed
    def __init__(self, format: _Optional[int] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., training_failed: _Optional[_Union[TrainingFailed, _Mapping]] = ...) -> None: ...
