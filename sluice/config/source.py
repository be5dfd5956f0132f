"""What a run starts from: the model and the data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice.config.section import Section


class ModelConfig(Section):
    path: str = Field(description="Folder of the Hugging Face checkpoint that the run starts from (policy version v0).")
    trainer_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Precision of the trainer's weights; optimizer masters are always float32."
    )
    engine_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Precision in which weights are published to the engines."
    )
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        "sdpa", description="Attention implementation of the trainer."
    )
    trust_remote_code: bool = Field(
        False, description="Run model code from the checkpoint; refused unless the deployment allows it."
    )


class DataConfig(Section):
    train_files: tuple[str, ...] = Field(
        min_length=1, description="Parquet or JSONL files in the DAPO-Math-17k schema, read in this order."
    )
    prompt_key: str = Field("prompt", description="Column with the prompt: a string, or a list of chat messages.")
    prompt_format: Literal["chat", "raw"] = Field(
        "chat", description="`chat` applies the model's chat template; `raw` gives the text to the model as it is."
    )
    max_prompt_length: int = Field(2048, ge=1, description="Longest prompt in tokens.")
    overlong_prompts: Literal["drop", "truncate_left", "error"] = Field(
        "drop", description="What happens to prompts over max_prompt_length; dropped ones are counted."
    )
    deduplicate: bool = Field(True, description="Keep one of each exact copy of a prompt, and count the rest.")
    shuffle: bool = Field(True, description="Draw each epoch in a seeded random order.")
    total_epochs: int | None = Field(
        None, ge=1, description="Passes over the data after which it is exhausted; unset: as many as total_steps needs."
    )
