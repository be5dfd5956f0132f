"""Ranks of one trainer as real processes: `python -m tests.trainer.several_ranks KIND RANKS MODEL OUT`.

What is slow to import is imported once, and then every rank is a fork of this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from services.trainer.config import TrainerSettings
from services.trainer.fetching import assemble_share, plan_share
from services.trainer.learner import Learner
from services.trainer.memory import keep_freed_memory
from services.trainer.packing import PackingLimits
from services.trainer.process import run_rank
from services.trainer.ranks import Ranks
from services.trainer.zero import join_ranks
from sluice.telemetry import get_logger
from tests.servers import free_port
from tests.trainer import resizing, slicing
from tests.trainer.layouts import LR, Layout, disturb, near_policy, plain_trainer, spec_of
from tests.trainer.plain_engine import PlainEngine
from tests.trainer.real_shapes import real_spec, wide_batch
from tests.trainer.updating import lora_spec, several_groups, update, weights

ALGORITHMS: tuple[dict[str, Any], ...] = (
    {},
    {"loss_mode": "gspo", "loss_agg_mode": "seq-mean-token-mean", "kl_loss_coef": 0.1, "entropy_coeff": 0.01},
    {"loss_agg_mode": "group-mean-token-mean", "rejection": "token_k1", "rejection_upper": 1.5},
)
"""Several denominators, and one that is only known once every rank has rejected its tokens."""
LAYOUT = Layout("shared", 16, checkpointing=False, seed=0)


def run(kind: str, ranks: int, model: Path, folder: Path, **variables: str) -> Any:
    """What rank 0 of so many found, with these variables in their environment."""
    out = folder / f"{kind}.pt"
    command = [sys.executable, "-m", "tests.trainer.several_ranks", kind, str(ranks), str(model), str(out)]
    subprocess.run(command, check=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1", **variables})
    return torch.load(out)


def exact(rank: int, world_size: int, model: Path, _folder: Path) -> Any:
    """Float64 gradients of each update under each of ALGORITHMS."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    ranks, found = Ranks(rank, world_size), []
    for algorithm in ALGORITHMS:
        spec = spec_of(model, algorithm, LAYOUT, updates=2, epochs=2)
        batch, rollouts = near_policy(plain_trainer(spec), spec)
        engine = PlainEngine(spec, ranks)
        reference = engine.frozen_copy(disturb) if spec.algorithm.kl_loss_coef else None
        share = assemble_share(
            plan_share(batch, spec, rank, world_size), rollouts, spec, PackingLimits(LAYOUT.budget, True, 64)
        )
        outcome = Learner(engine, ranks, spec, reference).train(share.mini_batches, lambda _: LR)
        found.append((engine.gradients, outcome.sums.loss, outcome.gap.fields()))
    return found


def sharded(rank: int, world_size: int, model: Path, folder: Path) -> Any:
    """Weights, losses and gradient norms after the updates of `several_groups` with ZeRO stages 3 and 1.

    Then the same with adapters, with stages 3 and 0, whose checkpoints are left in the folder.
    """
    ranks = join_ranks(rank, world_size, on_gpu=False, seconds=60)
    found = {}
    for kind, make_spec, stages in (("all", several_groups, (3, 1)), ("lora", lora_spec, (3, 0))):
        for stage in stages:
            engine, outcome = update(make_spec(model, stage), ranks)
            found[kind, stage] = (weights(engine), outcome.sums.loss, outcome.grad_norms)
            if kind == "lora":
                engine.save(folder / f"lora.{stage}")
                ranks.agree(None)
    return found


def wide(rank: int, world_size: int, model: Path, _folder: Path) -> Any:
    """The float32 gradient at the real model's widths: stage 1, which sends the large vocabulary around only once."""
    ranks = join_ranks(rank, world_size, on_gpu=False, seconds=60)
    spec = real_spec(model, zero_stage=1)
    engine, _ = update(spec, ranks, *wide_batch(spec))
    return engine.gradients[0]


def resized(rank: int, world_size: int, model: Path, folder: Path) -> Any:
    """Checkpoints of these ranks, left in the folder, and what they make of one rank's that lie there, by stage."""
    ranks = join_ranks(rank, world_size, on_gpu=False, seconds=60)
    found = {}
    for stage in resizing.STAGES:
        spec = resizing.spec_of(model, stage)
        written = resizing.write(folder / f"{world_size}.{stage}", spec, ranks)
        same = resizing.resume(folder / f"{world_size}.{stage}", spec, ranks, universal=False)
        (other,) = (folder / f"1.{stage}").glob("*/*.universal")
        found[stage] = (written, same, resizing.resume(other, spec, ranks, universal=True))
    return found


def served(_rank: int, _count: int, _model: Path, _folder: Path) -> Any:
    """A run served to its end by these ranks, with the settings of the environment; the exit code."""
    return run_rank(TrainerSettings.from_environment(os.environ), False, get_logger("trainer"))


def sliced(rank: int, world_size: int, model: Path, folder: Path) -> Any:
    """Replicas of two ranks: what `slicing` says."""
    ranks = join_ranks(rank, world_size, on_gpu=False, seconds=60)
    ranks.divide(slicing.SLICES)
    found = {"exact": slicing.exact(ranks, model), "wide": slicing.wide(ranks, Path(os.environ[slicing.WIDE_MODEL]))}
    if world_size == slicing.SLICES:
        found["resumed"] = slicing.resumed(ranks, model, folder)
    return found


def two(rank: int, world_size: int, model: Path, folder: Path) -> Any:
    """All that two ranks do that share micro-batches: `sliced`, and a run served."""
    return {**sliced(rank, world_size, model, folder), "served": served(rank, world_size, model, folder)}


def four(rank: int, world_size: int, model: Path, folder: Path) -> Any:
    """All that four ranks do: `sliced`, and `exact` with a micro-batch of its own for each."""
    return {"sliced": sliced(rank, world_size, model, folder), "alone": exact(rank, world_size, model, folder)}


KINDS: dict[str, Callable[[int, int, Path, Path], Any]] = {
    "sharded": sharded,
    "wide": wide,
    "resized": resized,
    "served": served,
    "two": two,
    "four": four,
}


def main(kind: str, count: str, model: str, out: str) -> int:
    """Fork the ranks and wait for all of them."""
    os.environ.update({"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    children = [pid for rank in range(int(count)) if (pid := _fork(kind, rank, int(count), Path(model), Path(out)))]
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


def _fork(kind: str, rank: int, count: int, model: Path, out: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": "0"})
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        found = KINDS[kind](rank, count, model, out.parent)
        if rank == 0:
            torch.save(found, out)
    except Exception:  # a fork must not return into the caller: it says what happened and ends here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
