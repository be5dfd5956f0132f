"""The sides of the training benchmark: the same batch as rows of one kind, by one optimizer."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from bench.processes import peak_rss_mib, serve
from bench.sampled_batch import SampledGroup
from services.trainer.forest import Response
from services.trainer.learner import Learner
from services.trainer.packing import MicroBatch, pack
from services.trainer.policy import DTYPES, load_policy, packing_limits, without_dropout
from services.trainer.ranks import Ranks
from services.trainer.zero import ZeroEngine, join_ranks
from sluice.algorithms.advantages import group_advantages
from sluice.algorithms.aggregation import count_denominators, token_weight
from sluice.algorithms.losses import ClipRange, dapo_token_loss
from sluice.config import RunSpec, parse_run_spec

CPU = torch.device("cpu")
Step = Callable[[], tuple[float, float]]
"""One optimizer update; returns loss and gradient norm."""


class TorchEngine:
    """What ZeroEngine does, in plain torch: the same float32 masters, accumulation and AdamW, without DeepSpeed."""

    def __init__(self, policy: nn.Module, spec: RunSpec) -> None:
        self.device = CPU
        self._policy, self._clip = policy, spec.optim.grad_clip
        self._weights = list(policy.parameters())
        self._masters = [weight.detach().float().clone() for weight in self._weights]
        optim = spec.optim
        self._optimizer = torch.optim.AdamW(
            self._masters, optim.lr, optim.betas, optim.eps, optim.weight_decay, fused=True
        )

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logp, entropy = self._policy(batch)
        return logp, entropy

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient to the masters'."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        for weight, master in zip(self._weights, self._masters, strict=True):
            assert weight.grad is not None
            gradient = weight.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            weight.grad = None

    def step(self, lr: float) -> float:
        """One optimizer update; returns the gradient norm before clipping."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        norm = nn.utils.clip_grad_norm_(self._masters, self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        with torch.no_grad():
            for weight, master in zip(self._weights, self._masters, strict=True):
                weight.copy_(master)
        return float(norm)


@dataclasses.dataclass(frozen=True, slots=True)
class PaddedRows:
    """Rows [R, P + T]: prompts padded on the left to P, responses on the right to T; the loss's columns are [R, T]."""

    input_ids: Tensor
    attention: Tensor
    trained: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor


def begin(setup: None) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Import what all sides need; each request then is one turn of a side, in a child that takes its memory with it.

    Together the sides would need some 30 GB.
    """
    import deepspeed  # noqa: F401  # slow; here once for all children

    def answer(request: dict[str, Any]) -> dict[str, float]:
        with ProcessPoolExecutor(1, get_context("fork")) as child:
            return child.submit(take_turn, parse_run_spec(request["spec"]), request).result()

    return answer


def take_turn(spec: RunSpec, request: Mapping[str, Any]) -> dict[str, float]:
    """Load the model and lay out the batch; one optimizer update that is not counted, and one that is."""
    torch.set_num_threads(1)
    os.environ["MASTER_PORT"] = str(request["port"])
    groups = responses_of(request["groups"], spec)
    packed = request["rows"] != "padded"
    step, computed = _packed(spec, groups, request["optimizer"]) if packed else _padded(spec, groups)
    loss, norm = step()
    begin_seconds, begin_cpu = time.monotonic(), time.process_time()
    step()
    return {
        "seconds": time.monotonic() - begin_seconds,
        "CPU-s": time.process_time() - begin_cpu,
        "peak RSS MiB": peak_rss_mib(),
        "tokens computed": computed,
        "loss": loss,
        "grad norm": norm,
    }


def responses_of(groups: Sequence[SampledGroup], spec: RunSpec) -> list[list[Response]]:
    """The sampled groups as the trainer would train them."""
    return [
        [
            Response(tuple(group["prompt"]), tuple(tokens), tuple(logprobs), advantage, n)
            for tokens, logprobs, advantage in zip(
                group["tokens"],
                group["logprobs"],
                group_advantages(group["rewards"], spec.algorithm.norm_adv_by_std),
                strict=True,
            )
        ]
        for n, group in enumerate(groups)
    ]


def _packed(spec: RunSpec, groups: list[list[Response]], optimizer: str) -> tuple[Step, int]:
    """The trainer's own rows and learner, on DeepSpeed or on plain torch."""
    on_deepspeed = optimizer != "torch"
    ranks = join_ranks(0, 1, False, 60.0) if on_deepspeed else Ranks(0, 1)
    policy = load_policy(spec)
    micro_batches = pack(groups, packing_limits(policy, spec))
    # Learner asks no more of its engine than TorchEngine has, with one optimizer update a step.
    engine = ZeroEngine(policy, spec, CPU) if on_deepspeed else cast(ZeroEngine, TorchEngine(policy, spec))
    learner = Learner(engine, ranks, spec)

    def step() -> tuple[float, float]:
        outcome = learner.train([micro_batches], lambda _: spec.optim.lr)
        return outcome.sums.loss, outcome.grad_norms[0]

    return step, sum(micro_batch.size for micro_batch in micro_batches)


def _padded(spec: RunSpec, groups: list[list[Response]]) -> tuple[Step, int]:
    """The usual loop: one padded row a response, logits of all response positions, torch's own log-softmax."""
    config: Any = AutoConfig.from_pretrained(spec.model.path)
    without_dropout(config)
    dtype = DTYPES[spec.model.trainer_dtype]
    model: Any = AutoModelForCausalLM.from_pretrained(
        spec.model.path, config=config, dtype=dtype, attn_implementation=spec.model.attention
    )
    model.train()
    engine = TorchEngine(model, spec)
    algorithm = spec.algorithm
    clip = ClipRange(algorithm.clip_ratio_low, algorithm.clip_ratio_high, algorithm.clip_ratio_c)
    rows = padded_rows([response for group in groups for response in group], spec)

    def step() -> tuple[float, float]:
        total = 0.0
        for at, row in enumerate(rows, start=1):
            loss = _padded_loss(model, row, clip)
            engine.backward(loss, last=at == len(rows))
            total += float(loss.detach())
        return total, engine.step(spec.optim.lr)

    return step, sum(row.input_ids.numel() for row in rows)


def _padded_loss(model: Any, rows: PaddedRows, clip: ClipRange) -> Tensor:
    length = rows.trained.shape[1]
    positions = (rows.attention.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=rows.input_ids,
        attention_mask=rows.attention,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=length + 1,
    ).logits[:, :-1]
    targets = rows.input_ids[:, -length:].unsqueeze(2)
    logp = logits.float().log_softmax(-1).gather(2, targets).squeeze(2)
    chosen = rows.trained
    token = dapo_token_loss(logp[chosen], rows.behaviour[chosen], rows.advantages[chosen], clip)
    return (token.loss * rows.weights[chosen]).sum()


def padded_rows(responses: Sequence[Response], spec: RunSpec) -> list[PaddedRows]:
    """As many rows at a time as the run's token budget, padding included, allows."""
    mode, longest = spec.algorithm.loss_agg_mode, spec.rollout.max_response_length
    totals = count_denominators((r.group, len(r.tokens)) for r in responses)
    prompt = max(len(r.prompt) for r in responses)
    response = max(len(r.tokens) for r in responses)
    count = max(spec.trainer.max_tokens_per_micro_batch // (prompt + response), 1)
    weighed = [(r, token_weight(mode, r.group, len(r.tokens), totals, longest)) for r in responses]
    parts = [weighed[at : at + count] for at in range(0, len(weighed), count)]
    return [_padded_rows(part, prompt, response) for part in parts]


def _padded_rows(weighed: Sequence[tuple[Response, float]], prompt: int, length: int) -> PaddedRows:
    responses = [r for r, _ in weighed]

    def columns(values: Callable[[Response], Sequence[float]]) -> Tensor:
        return torch.tensor([[*values(r), *[0.0] * (length - len(r.tokens))] for r in responses])

    def row(r: Response, prompt_value: Sequence[int], response_value: Sequence[int]) -> list[int]:
        left, right = prompt - len(r.prompt), length - len(r.tokens)
        return [*[0] * left, *prompt_value, *response_value, *[0] * right]

    lengths = torch.tensor([[len(r.tokens)] for r in responses])
    return PaddedRows(
        input_ids=torch.tensor([row(r, r.prompt, r.tokens) for r in responses]),
        attention=torch.tensor([row(r, [1] * len(r.prompt), [1] * len(r.tokens)) for r in responses]),
        trained=torch.arange(length) < lengths,
        behaviour=columns(lambda r: r.behaviour),
        advantages=columns(lambda r: [r.advantage] * len(r.tokens)),
        weights=torch.tensor([[weight] * length for _, weight in weighed]),
    )


if __name__ == "__main__":
    serve(begin)
