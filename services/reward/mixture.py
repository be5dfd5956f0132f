"""Several verifiers with weights, written as a sum: `math+0.2*style`. A single name is the shortest sum."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from sluice.types import Verdict, VerdictKind

_PART = re.compile(r"\s*(?:([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*\*\s*)?([^\s*+]+)\s*")


@dataclass(frozen=True, slots=True)
class Part:
    """A verifier of a sum."""

    verifier: str
    weight: float = 1.0


Mixture = tuple[Part, ...]


def parse_mixture(text: str, verifiers: Container[str]) -> Mixture | None:
    """The parts of a sum of known verifiers, or None when `text` is something else."""
    matches = [_PART.fullmatch(part) for part in re.split(r"(?<!\d[eE])(?<!\*)\+", text)]
    parts = [Part(match[2], float(match[1] or 1.0)) for match in matches if match is not None]
    if len(parts) != len(matches) or not all(part.verifier in verifiers for part in parts):
        return None
    return tuple(parts) if all(math.isfinite(part.weight) for part in parts) else None


def combine(mixture: Mixture, verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of a sum's: the score is weighted, `acc` and the extracted answer are those of its first verifier.

    Where one of them failed, the sum has failed.
    """
    if len(mixture) == 1 and mixture[0].weight == 1.0:
        return verdicts[0]
    label = "+".join(_label(part, verdict) for part, verdict in zip(mixture, verdicts, strict=True))
    seconds = sum(verdict.seconds for verdict in verdicts)
    failed = next((verdict for verdict in verdicts if verdict.kind is not VerdictKind.SCORED), None)
    if failed is not None:
        return replace(failed, verifier=label, seconds=seconds)
    score = sum(part.weight * (verdict.score or 0.0) for part, verdict in zip(mixture, verdicts, strict=True))
    return replace(verdicts[0], score=score, verifier=label, seconds=seconds)


def _label(part: Part, verdict: Verdict) -> str:
    return verdict.verifier if part.weight == 1.0 else f"{part.weight:g}*{verdict.verifier}"
