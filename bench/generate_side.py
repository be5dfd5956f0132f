"""The plain side of the engine benchmark: `transformers` generate with the log-probs of what it sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from bench.processes import serve


def begin(setup: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Load `setup["model"]`; what is returned samples `group_size` responses to each of `prompts` in one call."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_pretrained(setup["model"], dtype=getattr(torch, setup["dtype"]))
    model.eval()

    def answer(request: dict[str, Any]) -> dict[str, float]:
        stops = request["stop_token_ids"]
        ids, mask = left_padded(request["prompts"])
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                num_return_sequences=request["group_size"],
                max_new_tokens=request["max_new_tokens"],
                min_new_tokens=None if stops else request["max_new_tokens"],
                eos_token_id=stops or None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            sampled = found.sequences[:, ids.shape[1] :]
            logprobs = torch.stack(
                [
                    logits.float().log_softmax(-1).gather(1, token[:, None])[:, 0]
                    for logits, token in zip(found.logits, sampled.T, strict=True)
                ],
                dim=1,
            )
            lengths = response_lengths(sampled, stops)
            trained = torch.arange(sampled.shape[1]) < lengths[:, None]
        return {"tokens": int(lengths.sum()), "logprob_mean": float(logprobs[trained].mean())}

    return answer


def left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """[prompts, longest] token ids, and 1 where there is one."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


def response_lengths(sampled: Tensor, stops: list[int]) -> Tensor:
    """Tokens of each row up to its first stop token, that included."""
    stopped = torch.isin(sampled, torch.tensor(stops, dtype=sampled.dtype))
    first = torch.where(stopped.any(1), stopped.int().argmax(1), sampled.shape[1] - 1)
    return first + 1


if __name__ == "__main__":
    serve(begin)
