"""The sides of the training benchmark that are the trainer itself; each turn in one process a rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from bench.children import in_children
from bench.mixed_batch import sample_batch
from bench.mixed_lengths import Mix, SampledGroup
from bench.padded_loop import Hyperparameters, Masters, Update, measured_turn
from bench.processes import serve
from services.trainer.assignment import share_out
from services.trainer.forest import Response
from services.trainer.learner import Learner
from services.trainer.packing import MicroBatch, pack
from services.trainer.policy import load_policy, packing_limits
from services.trainer.ranks import Ranks
from services.trainer.zero import ZeroEngine, join_ranks
from sluice.algorithms.advantages import group_advantages
from sluice.config import RunSpec, parse_run_spec
from sluice.types import BatchGroup, FinishReason, PolicyVersion, RolloutSummary, VerdictKind

CPU = torch.device("cpu")
JOIN_SECONDS = 120.0
ADDED = ("CPU-s", "peak RSS MiB", "tokens computed")
"""Figures of ranks that add up; of the others the largest counts."""


class TorchEngine:
    """What ZeroEngine does, in plain torch: the same float32 masters, accumulation and AdamW, without DeepSpeed."""

    def __init__(self, policy: nn.Module, hyper: Hyperparameters) -> None:
        self.device = CPU
        self._policy = policy
        self._masters = Masters(policy, hyper)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logp, entropy = self._policy(batch)
        return logp, entropy

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient to the masters'."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._masters.accumulate()

    def step(self, lr: float) -> float:
        """One optimizer update, at the rate of its masters; returns the gradient norm before clipping."""
        return self._masters.update()


def begin(setup: None) -> Callable[[dict[str, Any]], Any]:
    """Import what all turns need; each is taken by children, for together they would need some 20 GB."""
    import deepspeed  # noqa: F401  # slow; here once for all children

    def answer(request: dict[str, Any]) -> Any:
        if "mix" in request:
            return in_children(sample, [request])[0]
        found = in_children(take_turn, [{**request, "rank": rank} for rank in range(request["ranks"])])
        return {
            name: sum(one[name] for one in found) if name in ADDED else max(one[name] for one in found)
            for name in found[0]
        }

    return answer


def sample(request: Mapping[str, Any]) -> list[SampledGroup]:
    """The batch that all sides train."""
    return sample_batch(parse_run_spec(request["spec"]), Mix(**request["mix"]), request["threads"])


def take_turn(request: dict[str, Any]) -> dict[str, float]:
    """One rank's turn, at a stage of ZeRO, or on plain torch where there is none."""
    torch.set_num_threads(request["threads"])
    fields = request["spec"]
    fields["trainer"]["zero_stage"] = request["stage"] or 1  # at 3 the model would be loaded into shards
    return measured_turn(_trainer(parse_run_spec(fields), request), request)


def _trainer(spec: RunSpec, request: Mapping[str, Any]) -> Update:
    """The trainer's own rows and learner."""
    rank, world_size, on_deepspeed = request["rank"], request["ranks"], request["stage"] is not None
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ["MASTER_PORT"] = str(request["port"])
    ranks = join_ranks(rank, world_size, False, JOIN_SECONDS) if on_deepspeed else Ranks(0, 1)
    policy = load_policy(spec)
    limits = packing_limits(policy, spec)
    # Learner asks no more of its engine than TorchEngine has, with one optimizer update a step.
    engine = (
        ZeroEngine(policy, spec, CPU)
        if on_deepspeed
        else cast(ZeroEngine, TorchEngine(policy, Hyperparameters(**request["hyper"])))
    )
    learner = Learner(engine, ranks, spec)

    def update(groups: Sequence[SampledGroup]) -> tuple[float, float, int]:
        micro_batches = pack(share_of(groups, spec, rank, world_size), limits)
        outcome = learner.train([micro_batches], lambda _: spec.optim.lr)
        return outcome.sums.loss, outcome.grad_norms[0], sum(micro_batch.size for micro_batch in micro_batches)

    return update


def share_of(groups: Sequence[SampledGroup], spec: RunSpec, rank: int, world_size: int) -> list[list[Response]]:
    """What a rank trains of the sampled groups, as the trainer shares them out."""
    shares = share_out([_as_recorded(n, group) for n, group in enumerate(groups)], world_size)
    return [_responses(recorded.n, groups[recorded.n], spec) for recorded in shares[rank]]


def _as_recorded(n: int, group: SampledGroup) -> BatchGroup:
    version = PolicyVersion(0, 1)
    rollouts = tuple(
        RolloutSummary(
            (), b"", VerdictKind.SCORED, reward, reward, 0.0, len(tokens), FinishReason.STOP, version, version
        )
        for tokens, reward in zip(group["tokens"], group["rewards"], strict=True)
    )
    return BatchGroup(n, "", 0, 0, rollouts)


def _responses(n: int, group: SampledGroup, spec: RunSpec) -> list[Response]:
    advantages = group_advantages(group["rewards"], spec.algorithm.norm_adv_by_std)
    rollouts = zip(group["tokens"], group["logprobs"], advantages, strict=True)
    return [Response(group["prompt"], tokens, logprobs, advantage, n) for tokens, logprobs, advantage in rollouts]


if __name__ == "__main__":
    serve(begin)
