"""Sampling: the CPU engine behind its HTTP API, beside a plain `transformers` generate, in tokens a CPU-second.

Both sides have one thread, the same weights and allocator settings, and return the log-prob of every response token.
The engine gets one request a group, all at once, as a rollout worker sends them; generate gets all rows in one call,
which suits it best. Each round has prompts that neither side has seen before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.harness import Measured, Report, Side, figures_of, ratio, run_benchmark, services, take_turns
from bench.processes import Peer, cpu_seconds
from sluice.config import RunSpec, load_run_spec
from sluice.data.model_files import stop_token_ids
from sluice.data.table import load_prompts
from sluice.local.ports import LOOPBACK
from sluice.local.stack import TORCH_ENVIRONMENT, StackOptions

NAME = "engine"
ENGINE = "engine-0"
Sampler = Callable[[dict[str, Any]], Awaitable[dict[str, float]]]


@dataclass(frozen=True, slots=True)
class Case:
    """How responses end: at one of `stop_token_ids`, or only at their length when there are none."""

    name: str
    stop_token_ids: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-file", type=Path, default=Path("configs/demo.toml"), help="model, data and lengths")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side that count")
    parser.add_argument("--groups", type=int, default=16, help="prompts of a turn")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """Both cases, both sides."""
    if arguments.quick:
        arguments = argparse.Namespace(**{**vars(arguments), "rounds": 1, "groups": 4})
        arguments.run_file = Path("configs/tiny.toml")
    spec = load_run_spec(arguments.run_file)
    newline = stop_token_ids(spec)
    cases = (Case("stop at newline", newline), Case(f"exactly {spec.rollout.max_response_length}", ()))
    folder: Path = arguments.output / "engine-stack"
    options = StackOptions(data=folder / "data", model=Path(spec.model.path), engine_dtype=spec.model.engine_dtype)
    setup = {"model": spec.model.path, "dtype": spec.model.engine_dtype}
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    async with services(options, [ENGINE], folder / "logs") as (stack, supervisor):
        log = folder / "logs" / "generate.log"
        peer = await Peer.start("bench.generate_side", TORCH_ENVIRONMENT, log)
        try:
            await peer.ask(setup)
            async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{stack.ports[ENGINE]}", timeout=120) as client:
                for case in cases:
                    found = await take_turns(
                        {
                            "engine": _side(spec, case, arguments.groups, supervisor.pids[ENGINE], over_http(client)),
                            "generate": _side(spec, case, arguments.groups, peer.pid, peer.ask),
                        },
                        arguments.rounds,
                    )
                    figures |= {f"{side}, {case.name}": row for side, row in figures_of(found).items()}
                    ratios |= {
                        f"engine / generate, {case.name}, {figure}": ratio(found["engine"], found["generate"], figure)
                        for figure in ("tokens / CPU-s", "tokens / s")
                    }
        finally:
            await peer.stop()
    return Report(_settings(arguments, spec), figures, ratios, READING)


READING = (
    "Higher is better. CPU-seconds are those of the process alone, so they bear other load on the machine better than "
    "seconds do. nats / token: minus the mean returned log-prob; both sides sample the same policy, so it agrees but "
    "for noise (0.1 a turn)."
)


def _settings(arguments: argparse.Namespace, spec: RunSpec) -> dict[str, Any]:
    return {
        "run_file": str(arguments.run_file),
        "model": spec.model.path,
        "dtype": spec.model.engine_dtype,
        "rounds": arguments.rounds,
        "groups": arguments.groups,
        "group_size": spec.rollout.group_size,
        "max_new_tokens": spec.rollout.max_response_length,
        "prompt_tokens_median": statistics.median(map(len, _prompts(spec))),
        "threads": 1,
    }


def _side(spec: RunSpec, case: Case, groups: int, pid: int, sample: Sampler) -> Side:
    """One turn: the next prompts of the data, sampled by the process `pid`."""
    prompts = _batches(spec, groups)

    async def turn() -> Measured:
        request = {
            "prompts": next(prompts),
            "group_size": spec.rollout.group_size,
            "max_new_tokens": spec.rollout.max_response_length,
            "stop_token_ids": list(case.stop_token_ids),
        }
        begin, used = time.monotonic(), cpu_seconds(pid)
        answer = await sample(request)
        used, seconds = cpu_seconds(pid) - used, time.monotonic() - begin
        return {
            "tokens / CPU-s": answer["tokens"] / used,
            "tokens / s": answer["tokens"] / seconds,
            "CPU-s": used,
            "tokens": answer["tokens"],
            "nats / token": -answer["logprob_mean"],
        }

    return turn


def over_http(client: httpx.AsyncClient) -> Sampler:
    """The engine as a sampler; what it has cached of earlier turns is dropped first."""

    async def sample(request: dict[str, Any]) -> dict[str, float]:
        bodies = [_body(prompt, request) for prompt in request["prompts"]]
        responses = await asyncio.gather(*(client.post("/generate", json=body) for body in bodies))
        answers = [answer for response in responses for answer in response.raise_for_status().json()]
        logprobs = [entry[0] for a in answers for entry in a["meta_info"]["output_token_logprobs"]]
        (await client.post("/flush_cache", json={})).raise_for_status()
        return {"tokens": len(logprobs), "logprob_mean": statistics.fmean(logprobs)}

    return sample


def _body(prompt: list[int], request: dict[str, Any]) -> dict[str, Any]:
    stops = request["stop_token_ids"]
    params = {
        "n": request["group_size"],
        "max_new_tokens": request["max_new_tokens"],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "stop_token_ids": stops,
        "ignore_eos": not stops,
    }
    return {"input_ids": prompt, "sampling_params": params, "return_logprob": True}


def _prompts(spec: RunSpec) -> list[list[int]]:
    table = load_prompts(spec)
    return [list(table.row(index).token_ids) for index in range(len(table))]


def _batches(spec: RunSpec, groups: int) -> Iterator[list[list[int]]]:
    """Batches of prompts in a seeded order, the same for every side; begins again when the data ends."""
    prompts = _prompts(spec)
    random.Random(1).shuffle(prompts)
    while True:
        for at in range(0, len(prompts) - groups + 1, groups):
            yield prompts[at : at + groups]


if __name__ == "__main__":
    main()
