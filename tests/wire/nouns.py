"""Hypothesis strategies for everything that crosses the wire, as wide as the proto types allow."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from sluice.packed import LogProbs, TokenIds
from sluice.types import (
    Batch,
    BatchGroup,
    Checkpoint,
    Claim,
    Drop,
    DropReason,
    EvaluatedResponse,
    EvaluationBegun,
    EvaluationEnded,
    EvaluationGroup,
    EvaluationOutcome,
    EvaluationPrompt,
    FinishReason,
    Floors,
    Group,
    GroupStatus,
    Issue,
    Lineage,
    Origin,
    PolicyVersion,
    Prompt,
    Rollout,
    RolloutSummary,
    RunCreated,
    RunState,
    Sampling,
    SamplingStats,
    StateChange,
    Tally,
    TrainingFailed,
    Verdict,
    VerdictKind,
    Version,
    VersionSpan,
)

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
double = st.floats(allow_nan=False)
text = st.text(max_size=20)
tokens = st.lists(uint32, max_size=20).map(tuple)
versions = st.builds(PolicyVersion, uint64, uint64)
floors = st.builds(Floors, uint64, uint64)
reasons = st.sampled_from(DropReason)

prompts = st.builds(
    Prompt,
    run_id=text,
    n=uint64,
    index=uint64,
    epoch=uint64,
    token_ids=st.lists(uint32, min_size=1, max_size=20).map(tuple),
    text=text,
    ground_truth=text,
    data_source=text,
    extra_info=text,
    group_size=st.integers(1, 2**32 - 1),
    sampling=st.builds(Sampling, uint32, double, double, st.integers(-(2**31), 2**31 - 1), tokens),
    seed=uint64,
    min_version=uint64,
)


@st.composite
def rollouts(draw: st.DrawFn, max_i: int = 2**32 - 1) -> Rollout:
    """Any tokens under any number of neighbouring spans, empty ones included."""
    token_ids = draw(tokens.map(TokenIds))
    count = len(token_ids)
    logprobs = draw(st.lists(st.floats(width=32), min_size=count, max_size=count).map(LogProbs))
    cuts = [*sorted(draw(st.lists(st.integers(0, len(token_ids)), max_size=3))), len(token_ids)]
    spans = tuple(VersionSpan(draw(versions), start, end) for start, end in zip([0, *cuts], cuts, strict=False))
    return Rollout(
        draw(text),
        draw(uint64),
        draw(text),
        draw(st.integers(0, max_i)),
        draw(tokens.map(TokenIds)),
        token_ids,
        logprobs,
        draw(st.sampled_from(FinishReason)),
        spans,
    )


summaries = st.builds(
    RolloutSummary,
    sequences=st.lists(uint64, max_size=3).map(tuple),
    content_hash=st.binary(max_size=16),
    verdict=st.sampled_from(VerdictKind),
    acc=double,
    score=double,
    shaping=double,
    length=uint32,
    finish_reason=st.sampled_from(FinishReason),
    oldest_version=versions,
    newest_version=versions,
    spans=st.lists(st.builds(VersionSpan, versions, uint32, uint32), max_size=2).map(tuple),
    offset=uint32,
    nbytes=uint32,
)
groups = st.builds(
    Group,
    run_id=text,
    n=uint64,
    attempt=text,
    status=st.sampled_from(GroupStatus),
    rollouts=st.lists(summaries, max_size=3).map(tuple),
    worker=text,
    engine=text,
    min_version=uint64,
    generate_seconds=double,
    reward_seconds=double,
    sample_text=text,
    error=text,
)

checkpoints = st.builds(Checkpoint, uint64, uint64, text, text, text)
origins = st.builds(Origin, text, checkpoints, st.lists(uint64, max_size=4).map(tuple), uint64)
verdicts = st.builds(
    Verdict, st.sampled_from(VerdictKind), st.none() | double, st.none() | double, text, text, double, text
)
evaluation_prompts = st.builds(
    lambda version, prompt, seeds: EvaluationPrompt(version, replace(prompt, group_size=len(seeds)), tuple(seeds)),
    versions,
    prompts,
    st.lists(uint64, min_size=1, max_size=20),
)
evaluation_groups = st.builds(
    EvaluationGroup,
    run_id=text,
    version=versions,
    n=uint64,
    responses=st.lists(
        st.builds(EvaluatedResponse, text, uint32, st.sampled_from(FinishReason), verdicts), max_size=3
    ).map(tuple),
    worker=text,
    engine=text,
    generate_seconds=double,
    reward_seconds=double,
    error=text,
)
evaluation_records = st.one_of(
    st.builds(EvaluationBegun, versions, uint64, uint64, text),
    st.builds(EvaluationEnded, versions, st.sampled_from(EvaluationOutcome), text, text),
)

issues = st.builds(Issue, uint64, uint64, uint64, floors, st.lists(uint64, max_size=4).map(tuple))
batches = st.builds(
    Batch,
    k=uint64,
    groups=st.lists(
        st.builds(BatchGroup, uint64, text, uint64, uint64, st.lists(summaries, max_size=2).map(tuple)), max_size=3
    ).map(tuple),
    dropped=st.lists(st.tuples(uint64, reasons), max_size=4).map(tuple),
    next_n=uint64,
    live=st.lists(issues, max_size=3).map(tuple),
    floors=floors,
    tally=st.builds(Tally, uint64, uint64, st.dictionaries(reasons, uint64), uint64, uint64),
    sampled=st.builds(SamplingStats, uint64, uint64, double, double, uint64, uint64, uint64),
    version=uint64,
    groups_seen=uint64,
    skipped=uint64,
)
ledger_records = st.one_of(
    st.builds(RunCreated, text, text, text, text, st.none() | origins),
    st.builds(Claim, text),
    issues,
    st.builds(Drop, st.lists(uint64, max_size=5).map(tuple), reasons),
    batches,
    st.builds(StateChange, st.sampled_from(RunState), text, text),
)
trainer_records = st.one_of(
    st.builds(Lineage, uint64, text, uint64),
    st.builds(Version, versions, text, text, text),
    checkpoints,
    st.builds(TrainingFailed, uint64, text),
)
