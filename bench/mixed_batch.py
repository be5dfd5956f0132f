"""A batch of responses of mixed length, sampled by the policy itself, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.mixed_lengths import Mix, SampledGroup
from services.engine.__main__ import build_engine
from services.engine.config import EngineConfig
from services.engine.request import Sample, SamplingParams
from sluice.config import RunSpec
from sluice.data.prompt_tokens import load_tokenizer
from sluice.data.table import load_prompts


def sample_batch(spec: RunSpec, mix: Mix, threads: int) -> list[SampledGroup]:
    """Responses of exactly the lengths of the mix to the first prompts of the run's data.

    A prompt is the last paragraph of its row: the question alone, without the worked examples that stand before it.
    """
    lengths, size = mix.lengths(), mix.group_size
    prompts = _prompts(spec, mix.groups)
    samples = [
        Sample(f"{i}", f"{i // size}", prompts[i // size], _exactly(length), seed=mix.seed * len(lengths) + i)
        for i, length in enumerate(lengths)
    ]
    config = EngineConfig(
        model=Path(spec.model.path),
        dtype=spec.model.engine_dtype,
        threads=threads,
        max_running_requests=len(samples),
    )
    engine = build_engine(config)
    engine.submit(samples)
    while engine.has_work:
        engine.step()
    return [_group(samples[at : at + size], mix.rewards()) for at in range(0, len(samples), size)]


def _prompts(spec: RunSpec, count: int) -> list[tuple[int, ...]]:
    table, tokenizer = load_prompts(spec), load_tokenizer(Path(spec.model.path))
    questions = (table.row(index).text.rpartition("\n\n")[2] for index in range(count))
    return [tuple(tokenizer.encode(question, add_special_tokens=False).ids) for question in questions]


def _exactly(length: int) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=length,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        stop_token_ids=frozenset(),
        ignore_eos=True,
    )


def _group(samples: Sequence[Sample], rewards: list[float]) -> SampledGroup:
    return SampledGroup(
        prompt=list(samples[0].prompt),
        tokens=[sample.output_ids for sample in samples],
        logprobs=[sample.output_logprobs for sample in samples],
        rewards=rewards,
    )
