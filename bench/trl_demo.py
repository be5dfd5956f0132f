"""The demo's training as TRL does it: GRPOTrainer with the loss "dapo". Runs in the environment of against_trl.py.

    python -m bench.trl_demo SETTINGS.json RESULT.json

It uses no module of Sluice, so that TRL gets a process with nothing in it but what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.trl_process import Settings, peak_rss_mib, run

WINDOW = 5
"""Training steps over which a reward is averaged; as in Sluice's summary."""
GOOD_REWARD = 0.85
MANY_STEPS = 20


class Progress:
    """The steps that are done: their mean rewards over all sampled groups, and when they ended."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rewards: list[float] = []
        self.ends: list[float] = []
        self._total, self._clock = total, clock
        self._start = clock()

    def begin(self) -> None:
        """Training starts now."""
        self._start = self._clock()

    def end_step(self) -> None:
        """A step ends now; its reward is known already."""
        self.ends.append(self._clock() - self._start)
        reward = self.rewards[len(self.ends) - 1]
        print(f"step {len(self.ends)}/{self._total}  {self.ends[-1]:6.1f} s  reward {reward:.3f}", flush=True)


def summary(rewards: Sequence[float], ends: Sequence[float]) -> dict[str, Any]:
    """The figures of a training whose steps had these rewards and ended at these seconds."""
    good = first_good_step(rewards)
    return {
        "steps": len(ends),
        "rewards": list(rewards),
        "seconds_per_step": [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)],
        "reward_first": rewards[0],
        "reward_last5_mean": sum(rewards[-WINDOW:]) / len(rewards[-WINDOW:]),
        "seconds_to_reward_085": None if good is None else ends[good],
        "seconds_20_steps": ends[MANY_STEPS - 1] if len(ends) >= MANY_STEPS else None,
    }


def first_good_step(rewards: Sequence[float]) -> int | None:
    """Index of the first step with which the mean of the last WINDOW reaches GOOD_REWARD."""
    ends = range(WINDOW, len(rewards) + 1)
    return next((end - 1 for end in ends if sum(rewards[end - WINDOW : end]) / WINDOW >= GOOD_REWARD), None)


def train(settings: Settings) -> dict[str, Any]:
    """Train `settings["steps"]` steps, with a line for each; returns their figures."""
    # Imported here, so that the tests can read the rest without TRL, which the project itself does not install.
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]  # only in the environment that against_trl.py makes
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOTrainer  # type: ignore[import-not-found]  # as above

    progress = Progress(settings["steps"])

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            progress.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            progress.end_step()

    tokenizer = AutoTokenizer.from_pretrained(settings["model"], padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=torch.float32, attn_implementation="eager"
    )
    # TRL takes the tokens that end a completion from here, for sampling and for its mask.
    model.generation_config.eos_token_id = settings["stop_token_ids"]
    trainer: Any = GRPOTrainer(
        model=model,
        args=_trl_config(settings),
        train_dataset=Dataset.from_list(settings["problems"]),
        reward_funcs=_reward(settings, tokenizer, progress),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.remove_callback(PrinterCallback)  # a line a step is enough
    trainer.train()
    return {**summary(progress.rewards, progress.ends), "peak_rss_mib": peak_rss_mib(), "versions": _versions()}


def _trl_config(settings: Settings) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=settings["output"],
        max_steps=settings["steps"],
        seed=settings["seed"],
        # One generate call, one forward and backward pass and one update a step; faster here than smaller pieces.
        per_device_train_batch_size=settings["prompts_per_step"] * settings["group_size"],
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        num_generations=settings["group_size"],
        shuffle_dataset=False,
        max_completion_length=settings["max_response_length"],
        temperature=settings["temperature"],
        top_p=settings["top_p"],
        top_k=0,
        loss_type="dapo",
        epsilon=settings["clip_ratio_low"],
        epsilon_high=settings["clip_ratio_high"],
        beta=0.0,
        scale_rewards="group",
        learning_rate=settings["lr"],
        lr_scheduler_type="constant",
        warmup_steps=0,
        optim="adamw_torch_fused",
        adam_beta1=settings["betas"][0],
        adam_beta2=settings["betas"][1],
        adam_epsilon=settings["eps"],
        weight_decay=settings["weight_decay"],
        max_grad_norm=settings["grad_clip"],
        gradient_checkpointing=False,
        # Weights in float32, computed with in bfloat16: TRL keeps no float32 copies of bfloat16 weights, and an
        # update of 1e-5 would be rounded away.
        bf16=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _reward(settings: Settings, tokenizer: Any, progress: Progress) -> Callable[..., list[float]]:
    stops = frozenset(settings["stop_token_ids"])

    def exact(completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        """1 for a completion that stopped by itself and is the answer, else 0."""
        texts = tokenizer.batch_decode(completion_ids, skip_special_tokens=True)
        rewards = [
            float(ids[-1] in stops and text.strip() == right)
            for ids, text, right in zip(completion_ids, texts, answer, strict=True)
        ]
        progress.rewards.append(sum(rewards) / len(rewards))
        return rewards

    return exact


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "trl", "transformers", "accelerate", "datasets")}


if __name__ == "__main__":
    run(train)
