"""A batch to train: groups that the CPU engine samples from a run's own data, judged by the run's own verifier."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypedDict

import httpx

from bench.harness import services
from services.reward.verifiers.outcome import to_outcome
from services.reward.verifiers.registry import load_verifiers
from sluice.config import RunSpec
from sluice.data.model_files import stop_token_ids
from sluice.data.prompt_tokens import load_tokenizer
from sluice.data.table import PromptRow, load_prompts
from sluice.errors import SluiceError
from sluice.local.ports import LOOPBACK
from sluice.local.stack import StackOptions
from sluice.types import ScoreItem

ENGINE = "engine-0"
AT_ONCE = 16
"""Groups sampled together."""


class SampledGroup(TypedDict):
    """A kept group; `tokens`, `logprobs` and `rewards` have one entry for each of its rollouts."""

    prompt: list[int]
    tokens: list[list[int]]
    logprobs: list[list[float]]
    rewards: list[float]


async def sample_batch(spec: RunSpec, folder: Path) -> list[SampledGroup]:
    """`trainer.prompts_per_step` kept groups, the same for the same engine and spec.

    Raises:
        SluiceError: the data has not as many groups whose outcomes differ.
    """
    options = StackOptions(data=folder / "data", model=Path(spec.model.path), engine_dtype=spec.model.engine_dtype)
    table, wanted = load_prompts(spec), spec.trainer.prompts_per_step
    kept: list[SampledGroup] = []
    async with services(options, [ENGINE], folder / "logs") as (stack, _), httpx.AsyncClient(timeout=120) as client:
        url = f"http://{LOOPBACK}:{stack.ports[ENGINE]}/generate"
        for first in range(0, len(table), AT_ONCE):
            rows = [table.row(i) for i in range(first, min(first + AT_ONCE, len(table)))]
            groups = await asyncio.gather(*(_sample(client, url, spec, row) for row in rows))
            kept += [group for group in groups if min(group["rewards"]) != max(group["rewards"])]
            if len(kept) >= wanted:
                return kept[:wanted]
    raise SluiceError(f"only {len(kept)} of {len(table)} groups have outcomes that differ; a batch needs {wanted}")


async def _sample(client: httpx.AsyncClient, url: str, spec: RunSpec, row: PromptRow) -> SampledGroup:
    params = {
        "n": spec.rollout.group_size,
        "max_new_tokens": spec.rollout.max_response_length,
        "temperature": spec.rollout.temperature,
        "top_p": spec.rollout.top_p,
        "top_k": spec.rollout.top_k,
        "stop_token_ids": list(stop_token_ids(spec)),
        "sampling_seed": row.index,
    }
    body = {"input_ids": list(row.token_ids), "sampling_params": params, "return_logprob": True}
    answers: list[dict[str, Any]] = (await client.post(url, json=body)).raise_for_status().json()
    tokens = [answer["output_ids"] for answer in answers]
    return SampledGroup(
        prompt=list(row.token_ids),
        tokens=tokens,
        logprobs=[[entry[0] for entry in answer["meta_info"]["output_token_logprobs"]] for answer in answers],
        rewards=_rewards(spec, row, tokens),
    )


def _rewards(spec: RunSpec, row: PromptRow, tokens: list[list[int]]) -> list[float]:
    tokenizer = load_tokenizer(Path(spec.model.path))
    verify = load_verifiers(())[spec.reward.verifier or row.data_source].verify
    items = [
        ScoreItem(
            id=str(i),
            data_source=row.data_source,
            prompt=row.text,
            response=tokenizer.decode(ids, skip_special_tokens=True),
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
            response_length=len(ids),
        )
        for i, ids in enumerate(tokens)
    ]
    return [to_outcome(verify(item)).score for item in items]
