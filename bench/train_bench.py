"""One optimizer update on the same rollouts of mixed length: Sluice's trainer, TRL's, and a plain padded loop.

The rollouts are sampled first, by the policy itself: `--groups` prompts of the run's data with `--group-size` responses
each, whose lengths are log-normal between `--shortest` and `--longest`. Then the sides take turns, each turn a process
of its own with the stack's allocator settings:

  TRL              GRPOTrainer with the loss "dapo" on the given rollouts, `--rows` at a time (needs its environment,
                   which is made once in artifacts/bench/trl-venv, 1.2 GB; not with --quick)
  padded loop      transformers and AdamW, `--rows` responses at a time, padded to the longest of them
  Sluice           the trainer's own rows, which compute common beginnings once, at ZeRO stage 1: the model fits
  torch, 1 core    the same rows on plain torch and one core, for ...
  ZeRO-3, 1 core   ... what stage 3 costs on a single rank, and ...
  ZeRO-3, 2 ranks  ... what a second rank gains on a second core

The first three have as many threads as the machine has cores. All train the same loss with AdamW and float32 masters;
loss and gradient norm show that they do. A turn updates twice: on the same rollouts cut to a quarter of the longest,
which is not counted, then on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.against_trl import TRL_ENVIRONMENT, VENV, prepare_environment
from bench.harness import ROOT, Measured, Report, Side, Spread, figures_of, ratio, run_benchmark, take_turns
from bench.mixed_lengths import Mix, SampledGroup, cut, response_tokens
from bench.processes import Peer
from sluice.cli.resolve import resolve
from sluice.config import RunSpec
from sluice.errors import SluiceError
from sluice.local.ports import LOOPBACK, free_ports
from sluice.local.stack import TORCH_ENVIRONMENT

NAME = "train"
UNCOUNTED_PART = 4
"""Of the longest response: what the first update of a turn trains of each."""
Ask = Callable[[Any], Awaitable[Any]]
ENVIRONMENT = {
    **TORCH_ENVIRONMENT,
    "MASTER_ADDR": LOOPBACK,
    "HF_HUB_OFFLINE": "1",
    # Without these, importing DeepSpeed would look for accelerators and load torch's compiler.
    "DS_ACCELERATOR": "cpu",
    "TORCHDYNAMO_DISABLE": "1",
}
QUICK = {
    "run_file": Path("configs/tiny.toml"),
    "groups": 4,
    "group_size": 4,
    "shortest": 2,
    "longest": 16,
    "budget": 64,
    "rounds": 1,
    "threads": 1,
    "without_trl": True,
}
TRAINER: Mapping[str, Mapping[str, Any]] = {
    "Sluice": {"ranks": 1, "stage": 1},
    "torch, 1 core": {"ranks": 1, "stage": None, "threads": 1},
    "ZeRO-3, 1 core": {"ranks": 1, "stage": 3, "threads": 1},
    "ZeRO-3, 2 ranks": {"ranks": 2, "stage": 3, "threads": 1},
}
"""`stage` None: no DeepSpeed."""
QUOTIENTS = (
    ("speed, Sluice / TRL", "tokens / s", "Sluice", "TRL"),
    ("speed, Sluice / padded loop", "tokens / s", "Sluice", "padded loop"),
    ("CPU-s, TRL / Sluice", "CPU-s", "TRL", "Sluice"),
    ("CPU-s, padded loop / Sluice", "CPU-s", "padded loop", "Sluice"),
    ("memory, Sluice / TRL", "peak RSS MiB", "Sluice", "TRL"),
    ("memory, Sluice / padded loop", "peak RSS MiB", "Sluice", "padded loop"),
    ("CPU-s, ZeRO-3 / torch", "CPU-s", "ZeRO-3, 1 core", "torch, 1 core"),
    ("speed, 2 ranks / 1 core", "tokens / s", "ZeRO-3, 2 ranks", "ZeRO-3, 1 core"),
)
READING = (
    "tokens / s: response tokens; prompts are on top. tokens computed: what went through the model, padding included. "
    "CPU-s and peak RSS of 2 ranks: of both together. Loss and gradient norm agree but for rounding."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-file", type=Path, default=Path("configs/gsm8k_smollm2.toml"), help="model and prompts")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side (default 2)")
    parser.add_argument("--groups", type=int, default=4, help="prompts (default 4)")
    parser.add_argument("--group-size", type=int, default=6, help="responses to each prompt (default 6)")
    parser.add_argument("--shortest", type=int, default=16, help="response tokens (default 16)")
    parser.add_argument("--longest", type=int, default=512, help="response tokens (default 512)")
    parser.add_argument(
        "--rows", type=int, default=4, help="responses in a micro-batch of TRL and the loop (default 4)"
    )
    parser.add_argument("--budget", type=int, default=2048, help="tokens in a micro-batch of Sluice (default 2048)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of all sides but the last three")
    parser.add_argument("--without-trl", action="store_true", help="leave TRL out")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """Sample, then all sides in turns."""
    if arguments.quick:
        arguments = argparse.Namespace(**{**vars(arguments), **QUICK})
    spec, folder = _spec(arguments), arguments.output / "train-sides"
    folder.mkdir(exist_ok=True)
    if not arguments.without_trl:
        prepare_environment(ROOT / VENV)
    async with _peer("bench.train_side", folder) as trainer, _peer("bench.padded_loop", folder) as loop:
        mix = Mix(arguments.groups, arguments.group_size, arguments.shortest, arguments.longest)
        fields = {"spec": spec.model_dump(mode="json"), "threads": arguments.threads, "hyper": _hyperparameters(spec)}
        groups = await trainer.ask({**fields, "mix": asdict(mix)})
        plain = {**fields, "model": spec.model.path, "dtype": spec.model.trainer_dtype, "rows": arguments.rows}
        asked: dict[str, tuple[Ask, Mapping[str, Any]]] = {
            "TRL": (_trl(folder), {**plain, "output": str(folder / "trl")}),
            "padded loop": (loop.ask, plain),
            **{name: (trainer.ask, {**fields, **side}) for name, side in TRAINER.items()},
        }
        if arguments.without_trl:
            del asked["TRL"]
        sides = {name: _side(ask, request, groups) for name, (ask, request) in asked.items()}
        found = await take_turns(sides, arguments.rounds, warm_up=False)
    return Report(_settings(arguments, spec, groups), figures_of(found), _ratios(found), READING)


@asynccontextmanager
async def _peer(module: str, folder: Path) -> AsyncIterator[Peer]:
    peer = await Peer.start(module, ENVIRONMENT, folder / f"{module}.log")
    try:
        await peer.ask(None)
        yield peer
    finally:
        await peer.stop()


def _spec(arguments: argparse.Namespace) -> RunSpec:
    """One update a step, anchored at its own policy, as TRL anchors it."""
    return resolve(
        arguments.run_file,
        [
            "trainer.updates_per_step=1",
            f"trainer.prompts_per_step={arguments.groups}",
            f"rollout.group_size={arguments.group_size}",
            f"rollout.max_response_length={arguments.longest}",
            f"trainer.max_tokens_per_micro_batch={arguments.budget}",
            "reward.overlong_buffer=0",
            "algorithm.proximal=recompute",
            "algorithm.importance_weight_cap=none",
        ],
    )


def _hyperparameters(spec: RunSpec) -> dict[str, float]:
    return {
        "lr": spec.optim.lr,
        "weight_decay": spec.optim.weight_decay,
        "grad_clip": spec.optim.grad_clip,
        "clip_low": spec.algorithm.clip_ratio_low,
        "clip_high": spec.algorithm.clip_ratio_high,
    }


def _side(ask: Ask, request: Mapping[str, Any], groups: Sequence[SampledGroup]) -> Side:
    longest = max(len(tokens) for group in groups for tokens in group["tokens"])
    batches = {"uncounted": cut(groups, longest // UNCOUNTED_PART), "groups": groups}

    async def turn() -> Measured:
        measured: dict[str, float] = await ask({**request, **batches, "port": free_ports(1)[0]})
        return {"tokens / s": response_tokens(groups) / measured["seconds"], **measured}

    return turn


def _trl(folder: Path) -> Ask:
    """A process of TRL's environment for each turn."""

    async def ask(request: Mapping[str, Any]) -> Any:
        settings, result, log = (folder / name for name in ("trl-settings.json", "trl-result.json", "trl.log"))
        settings.write_text(json.dumps(request), encoding="utf-8")
        command = (ROOT / VENV / "bin/python", "-m", "bench.trl_step", settings, result)
        environment = {**os.environ, **TRL_ENVIRONMENT, "OMP_NUM_THREADS": str(request["threads"])}
        with log.open("wb") as said:
            process = await asyncio.create_subprocess_exec(*command, stdout=said, stderr=said, env=environment)
            code = await process.wait()
        if code:
            raise SluiceError(f"TRL ended with code {code}; see {log}")
        return json.loads(result.read_text(encoding="utf-8"))

    return ask


def _settings(arguments: argparse.Namespace, spec: RunSpec, groups: Sequence[SampledGroup]) -> dict[str, Any]:
    lengths = [len(tokens) for group in groups for tokens in group["tokens"]]
    chosen = ("rounds", "groups", "group_size", "shortest", "longest", "rows", "budget", "threads")
    return {
        **{name: getattr(arguments, name) for name in chosen},
        "run_file": str(arguments.run_file),
        "model": spec.model.path,
        "dtype": spec.model.trainer_dtype,
        "prompt_tokens": sum(len(group["prompt"]) * len(group["tokens"]) for group in groups),
        "response_tokens": sum(lengths),
        "longest_response": max(lengths),
    }


def _ratios(found: Mapping[str, Sequence[Measured]]) -> dict[str, Spread]:
    return {
        name: ratio(found[above], found[below], figure)
        for name, figure, above, below in QUOTIENTS
        if above in found and below in found
    }


if __name__ == "__main__":
    main()
