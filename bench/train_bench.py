"""One optimizer update of the trainer on the same sampled batch: what its rows and what DeepSpeed cost or save.

Rows: `shared` computes common beginnings once, `packed` puts whole sequences side by side under a block mask, `padded`
is the usual loop with one row a response. Optimizers: DeepSpeed with one rank at ZeRO stage 3 or 1 (the trainer refuses
stage 0, which would train without float32 masters), or plain torch; all with float32 masters and AdamW. Each turn is a
process of its own, with one thread and the stack's allocator settings, and its first update is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side that count")
    run_benchmark(NAME, parser, measure)


async def measure(arguments: argparse.Namespace) -> Report:
    """All sides, with the batch sampled first."""
    file, rounds = (Path("configs/tiny.toml"), 1) if arguments.quick else (arguments.run_file, arguments.rounds)
    spec = resolve(file, ["trainer.updates_per_step=1", "algorithm.proximal=bypass"])
    folder: Path = arguments.output / "train-stack"
    peer = await Peer.start("bench.train_side", _environment(), folder / "logs" / "sides.log")
    try:
        batch, _ = await asyncio.gather(sample_batch(spec, folder), peer.ask(None))
        sides = {name: _side(peer, spec, batch, rows, optimizer) for name, (rows, optimizer) in SIDES.items()}
        found = await take_turns(sides, rounds, warm_up=False)
    finally:
        await peer.stop()
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


def _environment() -> dict[str, str]:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK}
    # Without the last two, importing DeepSpeed would look for accelerators and load torch's compiler.
    return {**TORCH_ENVIRONMENT, **rank, "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}


def _side(peer: Peer, spec: RunSpec, batch: list[SampledGroup], rows: str, optimizer: str) -> Side:
    fields = spec.model_dump(mode="json")
    fields["trainer"]["prefix_sharing"] = rows == "shared"
    fields["trainer"]["zero_stage"] = 1 if optimizer == "torch" else int(optimizer)

    async def turn() -> Measured:
        request = {"spec": fields, "groups": batch, "rows": rows, "optimizer": optimizer, "port": free_ports(1)[0]}
        measured: Measured = await peer.ask(request)
        return measured

    return turn


if __name__ == "__main__":
    main()
