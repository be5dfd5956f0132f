"""The training data and the model's files: what the coordinator reads before a run may start."""

from sluice.data.manifest import check_unchanged, manifest_of, same_prompts
from sluice.data.model_files import check_model, stop_token_ids, tokenizer_of
from sluice.data.order import chance_of, mixed_position, position, seed_of
from sluice.data.prepared import write_prompts
from sluice.data.table import PromptRow, PromptTable, TableCounts, load_prompts

__all__ = [
    "PromptRow",
    "PromptTable",
    "TableCounts",
    "chance_of",
    "check_model",
    "check_unchanged",
    "load_prompts",
    "manifest_of",
    "mixed_position",
    "position",
    "same_prompts",
    "seed_of",
    "stop_token_ids",
    "tokenizer_of",
    "write_prompts",
]
