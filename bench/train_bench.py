"""One optimizer update of the trainer on the same sampled batch: what its rows and what DeepSpeed cost or save.

Rows: `shared` computes common beginnings once, `packed` puts whole sequences side by side under a block mask, `padded`
is the usual loop with one row a response. Optimizers: DeepSpeed at ZeRO stage 3 or 1 (which
shards nothing but masters and moments; the trainer refuses 0) with one rank, or plain torch; all with float32 masters and AdamW. Each side is a process of its own, with one thread and the stack's allocator
settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.harness import Measured, Report, Side, Spread, figures_of, ratio, run_benchmark, take_turns
from bench.processes import Peer
from bench.sampled_batch import SampledGroup, sample_batch
from sluice.cli.resolve import resolve
from sluice.config import RunSpec
from sluice.local.ports import LOOPBACK, free_ports
from sluice.local.stack import TORCH_ENVIRONMENT

NAME = "train"
SIDES = {
    "shared, ZeRO-3": ("shared", "3"),
    "shared, ZeRO-1": ("shared", "1"),
    "shared, torch": ("shared", "torch"),
    "packed, ZeRO-3": ("packed", "3"),
    "padded, torch": ("padded", "torch"),
}
RATIOS = (
    ("padded, torch", "shared, ZeRO-3"),
    ("packed, ZeRO-3", "shared, ZeRO-3"),
    ("padded, torch", "shared, torch"),
    ("shared, ZeRO-3", "shared, torch"),
    ("shared, ZeRO-1", "shared, torch"),
)
"""Which side is divided by which."""
READING = (
    "Lower is better. Loss and gradient norm of all sides agree but for rounding: they do the same work. "
    "tokens computed: what goes through the model, padding included."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-file", type=Path, default=Path("configs/demo.toml"), help="model, data and batch")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side that count")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """All sides, with the batch sampled first."""
    file, rounds = (Path("configs/tiny.toml"), 1) if arguments.quick else (arguments.run_file, arguments.rounds)
    spec = resolve(file, ["trainer.updates_per_step=1", "algorithm.proximal=bypass"])
    folder: Path = arguments.output / "train-stack"
    batch = await sample_batch(spec, folder)
    async with AsyncExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, (rows, optimizer) in SIDES.items():
            peer = await _start(spec, batch, rows, optimizer, folder / "logs" / f"{rows}-{optimizer}.log")
            stack.push_async_callback(peer.stop)
            sides[name] = _side(peer)
        found = await take_turns(sides, rounds)
    lengths = [len(tokens) for group in batch for tokens in group["tokens"]]
    settings = {
        "run_file": str(file),
        "model": spec.model.path,
        "dtype": spec.model.trainer_dtype,
        "rounds": rounds,
        "groups": len(batch),
        "rollouts": len(lengths),
        "prompt_tokens": sum(len(group["prompt"]) * len(group["tokens"]) for group in batch),
        "response_tokens": sum(lengths),
        "max_tokens_per_micro_batch": spec.trainer.max_tokens_per_micro_batch,
        "threads": 1,
    }
    return Report(settings, figures_of(found), _ratios(found), READING)


def _ratios(found: Mapping[str, Sequence[Measured]]) -> dict[str, Spread]:
    return {
        f"({above}) / ({below}), {figure}": ratio(found[above], found[below], figure)
        for above, below in RATIOS
        for figure in ("CPU-s", "seconds", "peak RSS MiB")
    }


async def _start(spec: RunSpec, batch: list[SampledGroup], rows: str, optimizer: str, log: Path) -> Peer:
    fields = spec.model_dump(mode="json")
    fields["trainer"]["prefix_sharing"] = rows == "shared"
    fields["trainer"]["zero_stage"] = 3 if optimizer == "torch" else int(optimizer)
    setup: dict[str, Any] = {"spec": fields, "groups": batch, "rows": rows, "optimizer": optimizer}
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK}
    environment = {**TORCH_ENVIRONMENT, **rank, "MASTER_PORT": str(free_ports(1)[0]), "HF_HUB_OFFLINE": "1"}
    return await Peer.start("bench.train_side", setup, environment, log)


def _side(peer: Peer) -> Side:
    async def turn() -> Measured:
        measured: Measured = await peer.ask(None)
        return measured

    return turn


if __name__ == "__main__":
    main()
