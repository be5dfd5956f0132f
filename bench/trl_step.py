"""Training steps as TRL makes them, of rollouts that it is given: GRPOTrainer with the loss "dapo".

    python -m bench.trl_step SETTINGS.json RESULT.json

Runs in the environment of against_trl.py and uses no module of Sluice, so that TRL gets a process with nothing in it
but what it needs. The first step trains `uncounted`, the second one, which counts, `groups`.
"""

from __future__ import annotations

import time
from typing import Any

from bench.trl_process import Settings, peak_rss_mib, run

STEPS = ("uncounted", "groups")
"""What each of them trains."""


def train(settings: Settings) -> dict[str, float]:
    """Figures of the last step, from its first micro-batch, for which the whole batch is padded, to its update."""
    # Imported here, so that tests can read the rest without TRL, which the project itself does not install.
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]  # only in the environment of against_trl.py
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOTrainer  # type: ignore[import-not-found]  # as above

    torch.set_num_threads(settings["threads"])
    clock: dict[str, float] = {}

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.update(begin=time.monotonic(), begin_cpu=time.process_time())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.update(end=time.monotonic(), end_cpu=time.process_time())

    tokenizer = AutoTokenizer.from_pretrained(settings["model"], padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    groups = settings["groups"]
    size = len(groups[0]["tokens"])
    given = iter(STEPS)
    trainer: Any = GRPOTrainer(
        model=model,
        args=_config(settings, len(groups) * size, size),
        train_dataset=Dataset.from_list([{"prompt": str(n)} for n in range(len(groups))]),
        reward_funcs=_given_rewards,
        rollout_func=lambda *_: _rollouts(settings[next(given)]),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry][-1]
    return {
        "seconds": clock["end"] - clock["begin"],
        "CPU-s": clock["end_cpu"] - clock["begin_cpu"],
        "peak RSS MiB": peak_rss_mib(),
        "tokens computed": len(groups) * size * (_longest(groups, "prompt") + _longest(groups, "tokens")),
        "loss": logged["loss"],
        "grad norm": logged["grad_norm"],
    }


def _rollouts(groups: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """These, whatever prompts are asked for."""
    return {
        "prompt_ids": [group["prompt"] for group in groups for _ in group["tokens"]],
        "completion_ids": [tokens for group in groups for tokens in group["tokens"]],
        "logprobs": [logprobs for group in groups for logprobs in group["logprobs"]],
        "given": [reward for group in groups for reward in group["rewards"]],
    }


def _given_rewards(given: list[float], **_: Any) -> list[float]:
    return given


def _longest(groups: list[dict[str, Any]], what: str) -> int:
    rows = [group["prompt"] for group in groups] if what == "prompt" else [t for g in groups for t in g["tokens"]]
    return max(map(len, rows))


def _config(settings: Settings, rollouts: int, group_size: int) -> Any:
    from trl import GRPOConfig

    rows = settings["rows"]
    return GRPOConfig(
        output_dir=settings["output"],
        max_steps=len(STEPS),
        seed=1,
        # One batch of rollouts and one update a step, in micro-batches of `rows`.
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=rollouts // rows,
        steps_per_generation=rollouts // rows,
        num_iterations=1,
        num_generations=group_size,
        shuffle_dataset=False,
        max_completion_length=_longest(settings["groups"], "tokens"),
        temperature=1.0,
        loss_type="dapo",
        epsilon=settings["hyper"]["clip_low"],
        epsilon_high=settings["hyper"]["clip_high"],
        beta=0.0,
        scale_rewards="group",
        learning_rate=settings["hyper"]["lr"],
        lr_scheduler_type="constant",
        warmup_steps=0,
        optim="adamw_torch_fused",
        weight_decay=settings["hyper"]["weight_decay"],
        max_grad_norm=settings["hyper"]["grad_clip"],
        gradient_checkpointing=False,
        # Weights in float32, computed with in bfloat16: TRL keeps no float32 copies of bfloat16 weights.
        bf16=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    run(train)
