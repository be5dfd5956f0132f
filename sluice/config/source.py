"""What a run starts from: the model and the data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from sluice.config.section import Section


class ModelConfig(Section):
    path: str = Field(description="Folder of the Hugging Face checkpoint that the run starts from (policy version v0).")
    trainer_dtype: Literal["bfloat16", "float16", "float32"] = Field(
        "bfloat16",
        description="Precision of the trainer's weights; optimizer masters are always float32. `float16` needs a GPU.",
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


RowFormat = Literal["dapo", "gsm8k", "deepmath", "problem_answer"]
MappedKey = Literal["prompt", "query", "response", "system", "data_source"]
PromptStyle = Literal["dapo", "boxed", "gsm8k"]


class DataConfig(Section):
    train_files: tuple[str, ...] = Field(
        min_length=1,
        description="Parquet, JSONL, JSON or CSV files, folders saved by Hugging Face `datasets`, or `hub:OWNER/NAME`.",
    )
    mixing_weights: tuple[PositiveFloat, ...] | None = Field(
        None, description="Share of each train file among the issued prompts; unset: all rows are one set."
    )
    row_format: RowFormat = Field(
        "dapo", description="Columns of the files: `dapo` is DAPO-Math-17k's schema; or a public set by name."
    )
    map_keys: dict[MappedKey, str] = Field(
        {}, description="Column for each of prompt, query, response, system, data_source, where row_format has another."
    )
    prompt_style: PromptStyle | None = Field(
        None, description="Words put around a prompt that is a plain text: `dapo`, `boxed` or `gsm8k`; unset: none."
    )
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

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if twice := sorted({file for file in self.train_files if self.train_files.count(file) > 1}):
            raise ValueError(f"train_files names {', '.join(twice)} more than once")
        return self

    @model_validator(mode="after")
    def _check_mixing(self) -> Self:
        if self.mixing_weights is not None and len(self.mixing_weights) != len(self.train_files):
            raise ValueError(
                f"mixing_weights has {len(self.mixing_weights)} weights for {len(self.train_files)} train_files; "
                "give one for each"
            )
        return self
