"""What a run's prompts have shown so far, as the API answers it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice.views import View

Difficulty = Literal["unseen", "always_wrong", "mostly_wrong", "mostly_right", "always_right"]


class KeepRateView(View):
    """Groups on record of prompts of one data source that were equally difficult before."""

    data_source: str
    difficulty: Difficulty = Field(description="How often the policy had been right at the prompt before the group.")
    scored: int
    kept: int
    keep_rate: float
    corrected_keep_rate: float = Field(description="As if nothing had been skipped: each group counts 1 / its chance.")


class PromptView(View):
    """One prompt that was issued or skipped. What has no record yet is not counted."""

    row: int = Field(description="Row of the data set.")
    data_source: str
    issued: int
    skipped: int = Field(description="Times that its turn in the data order was passed over.")
    scored: int = Field(description="Groups whose outcomes are on record: how often it was seen.")
    kept: int = Field(description="Of these, the groups that trained.")
    accuracy: float | None = Field(None, description="Mean over the groups whose accuracy is on record.")
    streak: int = Field(description="Last scored groups in a row that were all correct; negative: all wrong.")
    chance: float = Field(description="How likely it is to be issued at its next turn.")


class PromptsView(View):
    """A run's prompts: counts of all, and the history of some."""

    rows: int = Field(description="Prompts of the data set.")
    seen: int = Field(description="Prompts with at least one scored group on record.")
    draws: int = Field(description="Turns of the data order so far, issued and skipped.")
    skipped: int
    by_lot: dict[str, int] = Field(description="Prompts that return by chance only, by what their last groups were.")
    keep_rates: tuple[KeepRateView, ...]
    prompts: tuple[PromptView, ...] = Field(description="Rows above `after` that were issued or skipped, lowest first.")
