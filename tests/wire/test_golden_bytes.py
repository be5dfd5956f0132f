"""The bytes as released programs write them, or have written them: a change here needs a new format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import zstandard

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
from sluice.wire.codec import (
    decode_group,
    decode_prompt,
    decode_rollout,
    encode_group,
    encode_prompt,
    encode_rollout,
)
from sluice.wire.evaluation import (
    decode_evaluation,
    decode_evaluation_group,
    decode_evaluation_prompt,
    encode_evaluation,
    encode_evaluation_group,
    encode_evaluation_prompt,
)
from sluice.wire.records import decode_ledger, decode_trainer, encode_ledger, encode_trainer

V2, V3 = PolicyVersion(2, 1), PolicyVersion(3, 1)
SUMMARY = RolloutSummary(
    (41, 42), bytes(range(16)), VerdictKind.SCORED, 1.0, 1.0, -0.25, 7, FinishReason.LENGTH, V2, V3
)
PACKED = replace(SUMMARY, sequences=(41,), offset=300, nbytes=70)
BATCH = Batch(
    k=3,
    groups=(BatchGroup(9, "a1b2", 2, 17, (SUMMARY,)),),
    dropped=((10, DropReason.ALL_WRONG),),
    next_n=12,
    live=(Issue(11, 1, 3, Floors(15, 40)),),
    floors=Floors(15, 40),
    tally=Tally(12, 10, {DropReason.ALL_WRONG: 1}, 11, 10),
    sampled=SamplingStats(2, 4, 1.5, 2.0, 28, 1, 28),
    version=3,
    groups_seen=18,
)

Sample = tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any], bool]
"""A value, how it is written, how it is read, and whether it is packed with zstd."""
PROMPT = Prompt("run-1", 9, 4, 1, (5, 300), "3+4=", "7", "exact", "{}", 2, Sampling(8, 1.0, 0.5, -1, (1, 3)), 77, 2)
SAMPLES: dict[str, Sample] = {
    "prompt": (
        PROMPT,
        encode_prompt,
        decode_prompt,
        False,
    ),
    "rollout": (
        Rollout(
            "run-1",
            9,
            "a1b2",
            1,
            TokenIds((5, 300)),
            TokenIds((7, 8)),
            LogProbs((-0.5, -0.25)),
            FinishReason.STOP,
            (VersionSpan(V2, 0, 1), VersionSpan(V3, 1, 2)),
        ),
        encode_rollout,
        decode_rollout,
        False,
    ),
    "group": (
        Group("run-1", 9, "a1b2", GroupStatus.SCORED, (SUMMARY,), "worker", "engine", 2, 1.5, 0.5, "7\n", "none"),
        encode_group,
        decode_group,
        False,
    ),
    "group_of_shared_messages": (
        Group("run-1", 9, "a1b2", GroupStatus.SCORED, (PACKED,), "worker", "engine", 2, 1.5, 0.5, "7\n", "none"),
        encode_group,
        decode_group,
        False,
    ),
    "run_created": (RunCreated("run-1", '{"name":"x"}', "0123456789abcdef"), encode_ledger, decode_ledger, False),
    "run_forked": (
        RunCreated("run-2", "{}", "ef", "{}", Origin("run-1", Checkpoint(5, 1, "/c/5.1", "ef", "01"), (79, 300), 301)),
        encode_ledger,
        decode_ledger,
        False,
    ),
    "claim": (Claim("coordinator-1"), encode_ledger, decode_ledger, False),
    "issue": (Issue(11, 300, 3, Floors(15, 40)), encode_ledger, decode_ledger, False),
    "issue_with_skips": (Issue(11, 2, 3, Floors(15, 40), (12, 300)), encode_ledger, decode_ledger, False),
    "drop": (Drop((4, 300), DropReason.STRAGGLER), encode_ledger, decode_ledger, False),
    "batch": (BATCH, encode_ledger, decode_ledger, False),
    "batch_of_shared_messages": (
        replace(BATCH, groups=(BatchGroup(9, "a1b2", 2, 17, (PACKED,)),)),
        encode_ledger,
        decode_ledger,
        False,
    ),
    "state_change": (StateChange(RunState.STOPPING, "done", '{"a":1}'), encode_ledger, decode_ledger, False),
    "lineage": (Lineage(2, "trainer-0", 5), encode_trainer, decode_trainer, False),
    "version": (Version(V3, "file:///w/v3.1", "ab", "cd"), encode_trainer, decode_trainer, False),
    "checkpoint": (Checkpoint(5, 1, "/c/5.1", "ef", "01"), encode_trainer, decode_trainer, False),
    "diverged": (TrainingFailed(1, "loss nan"), encode_trainer, decode_trainer, False),
    "evaluation_prompt": (
        EvaluationPrompt(V3, PROMPT, (7, 300)),
        encode_evaluation_prompt,
        decode_evaluation_prompt,
        False,
    ),
    "evaluation_group": (
        EvaluationGroup(
            "run-1",
            V3,
            9,
            (
                EvaluatedResponse(
                    "7", 2, FinishReason.STOP, Verdict(VerdictKind.SCORED, 1.0, 0.0, "7", "exact 1", 0.25)
                ),
                EvaluatedResponse(
                    "", 8, FinishReason.LENGTH, Verdict(VerdictKind.TIMEOUT, None, None, "", "", 5, "slow")
                ),
            ),
            "worker",
            "engine",
            1.5,
            0.25,
            "none",
        ),
        encode_evaluation_group,
        decode_evaluation_group,
        True,
    ),
    "evaluation_begun": (EvaluationBegun(V3, 4, 300, "{}"), encode_evaluation, decode_evaluation, False),
    "evaluation_ended": (
        EvaluationEnded(V3, EvaluationOutcome.INCOMPLETE, "late", '{"a":1}'),
        encode_evaluation,
        decode_evaluation,
        False,
    ),
}

GOLDEN: dict[str, str] = {
    "prompt": (
        "0801120572756e2d31180920042801320305ac023a04332b343d4201374a05657861637452027b7d5802621a080811000000"
        "000000f03f19000000000000e03f20012a020103684d7002"
    ),
    "rollout": (
        "360000000803120572756e2d31180922046131623228014a0473746f7052080a04080210011801520a0a0408031001100118"
        "027205040004000805002c0107000800000000bf000080be"
    ),
    "group": (
        "0801120572756e2d3118092204613162322a0673636f726564324f0a02292a1210000102030405060708090a0b0c0d0e0f1a"
        "0673636f72656421000000000000f03f29000000000000f03f31000000000000d0bf380742066c656e6774684a0408021001"
        "5204080310013a06776f726b65724206656e67696e65480251000000000000f83f59000000000000e03f6202370a6a046e6f"
        "6e65"
    ),
    "group_of_shared_messages": (
        "0802120572756e2d3118092204613162322a0673636f72656432530a01291210000102030405060708090a0b0c0d0e0f1a06"
        "73636f72656421000000000000f03f29000000000000f03f31000000000000d0bf380742066c656e6774684a040802100152"
        "040803100160ac0268463a06776f726b65724206656e67696e65480251000000000000f83f59000000000000e03f6202370a"
        "6a046e6f6e65"
    ),
    "run_created": ("080112270a0572756e2d31120c7b226e616d65223a2278227d1a1030313233343536373839616263646566"),
    "run_forked": (
        "0802123a0a0572756e2d3212027b7d1a02656622027b7d2a250a0572756e2d311214080510011a062f632f352e31220265662a0230311a034fac0220ad02"
    ),
    "claim": ("08011a0f0a0d636f6f7264696e61746f722d31"),
    "issue": ("0801220d080b10ac0218032204080f1028"),
    "issue_with_skips": ("08022211080b100218032204080f10282a030cac02"),
    "drop": ("08012a100a0304ac0212097374726167676c6572"),
    "batch": (
        "080132c1010803125d0809120461316232180220112a4f0a02292a1210000102030405060708090a0b0c0d0e0f1a0673636f"
        "72656421000000000000f03f29000000000000f03f31000000000000d0bf380742066c656e6774684a040802100152040803"
        "10011a0d080a1209616c6c5f77726f6e67200c2a0c080b100118032204080f10283204080f10283a17080c100a1a0d0a0961"
        "6c6c5f77726f6e671001200b280a421c0802100419000000000000f83f210000000000000040281c3001381c48035012"
    ),
    "batch_of_shared_messages": (
        "080332c501080312610809120461316232180220112a530a01291210000102030405060708090a0b0c0d0e0f1a0673636f72"
        "656421000000000000f03f29000000000000f03f31000000000000d0bf380742066c656e6774684a04080210015204080310"
        "0160ac0268461a0d080a1209616c6c5f77726f6e67200c2a0c080b100118032204080f10283204080f10283a17080c100a1a"
        "0d0a09616c6c5f77726f6e671001200b280a421c0802100419000000000000f83f210000000000000040281c3001381c4803"
        "5012"
    ),
    "state_change": ("08013a190a0873746f7070696e671204646f6e651a077b2261223a317d"),
    "lineage": ("0801120f08021209747261696e65722d301805"),
    "version": ("08011a1e0a0408031001120e66696c653a2f2f2f772f76332e311a02616222026364"),
    "checkpoint": ("08012214080510011a062f632f352e31220265662a023031"),
    "diverged": ("08012a0c080112086c6f7373206e616e"),
    "evaluation_prompt": (
        "08011204080310011a4a0801120572756e2d31180920042801320305ac023a04332b343d4201374a05657861637452027b7d"
        "5802621a080811000000000000f03f19000000000000e03f20012a020103684d7002220307ac02"
    ),
    "evaluation_group": (
        "0801120572756e2d311a040803100120092a3a0a013710021a0473746f70220673636f72656429000000000000f03f310000"
        "0000000000003a013742076578616374203149000000000000d03f2a2210081a066c656e677468220774696d656f75744900"
        "000000000014405204736c6f773206776f726b65723a06656e67696e6541000000000000f83f49000000000000d03f52046e"
        "6f6e65"
    ),
    "evaluation_begun": ("0801120f0a0408031001100418ac0222027b7d"),
    "evaluation_ended": ("08011a210a0408031001120a696e636f6d706c6574651a046c61746522077b2261223a317d"),
}


def raw(name: str) -> bytes:
    """The stored bytes of a sample; what zstd makes of them may differ between its releases, and need not."""
    value, encode, _, packed = SAMPLES[name]
    data = encode(value)
    return zstandard.decompress(data) if packed else data


OLDER: dict[str, list[str]] = {
    "rollout": [
        "0801120572756e2d3118092204613162322801320305ac023a0207084208000000bf000080be4a0473746f7052080a040802"
        "10011801520a0a040803100110011802",
        "0802120572756e2d31180922046131623228014a0473746f7052080a04080210011801520a0a0408031001100118025a0805"
        "2c000100000000620807080000000000006a08000000bf000080be",
    ],
}
"""Formats that no program writes any more, oldest first; all of them were packed with zstd."""


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bytes_of_this_format_are_still_written(name: str) -> None:
    assert raw(name).hex() == GOLDEN[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bytes_of_this_and_of_every_older_format_are_still_read(name: str) -> None:
    value, _, decode, packed = SAMPLES[name]
    golden = bytes.fromhex(GOLDEN[name])
    assert decode(zstandard.compress(golden) if packed else golden) == value
    for older in OLDER.get(name, []):
        assert decode(zstandard.compress(bytes.fromhex(older))) == value
