"""docs/configuration.md: the run file, field by field, from sluice/config/."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from documentation.markdown import table
from sluice.config import RunSpec

SECTIONS = {
    "model": "The checkpoint that the run starts from.",
    "data": "Where prompts come from and in which order they are drawn.",
    "rollout": "How responses are sampled.",
    "filter": "Dynamic sampling: which groups train.",
    "curriculum": "Prompts that have taught nothing for a while are drawn less often ([data.md](data.md#curriculum)).",
    "asynchrony": "How far generation may run ahead of training.",
    "reward": "How responses are judged and shaped.",
    "algorithm": "The loss.",
    "optim": "AdamW.",
    "lora": "Adapters instead of all weights: [algorithms.md](algorithms.md#lora).",
    "trainer": "Steps, batches and how they are computed.",
    "checkpoint": "What survives the death of the trainer.",
    "weights": "How policy versions reach the engines.",
    "evaluation": "What the policy is measured on while it trains: [evaluation.md](evaluation.md).",
    "deadlines": "Longest times before somebody is told.",
    "retry": "How often a trainer that dies is started again.",
}
"""What each section of the run file is about."""

RULES: tuple[tuple[str, dict[str, dict[str, Any]]], ...] = (
    (
        "`reward.overlong_buffer` is below `rollout.max_response_length`.",
        {"reward": {"overlong_buffer": 8}},
    ),
    (
        "`trainer.updates_per_step` divides `trainer.prompts_per_step`.",
        {"trainer": {"updates_per_step": 3}},
    ),
    (
        "`trainer.max_tokens_per_micro_batch`, times `trainer.sequence_parallel`, holds one row: "
        "`data.max_prompt_length` + `rollout.max_response_length`.",
        {"trainer": {"max_tokens_per_micro_batch": 8}},
    ),
    (
        '`model.attention = "flash_attention_2"` needs `trainer.prefix_sharing = false`: it knows no masks.',
        {"model": {"attention": "flash_attention_2"}},
    ),
    (
        '`trainer.sequence_parallel` above 1 needs `model.attention = "sdpa"` or `"flash_attention_2"`.',
        {"model": {"attention": "eager"}, "trainer": {"sequence_parallel": 2}},
    ),
    (
        "`trainer.offload_parameters` needs `trainer.zero_stage = 3`, and `trainer.offload_optimizer` 1 or more.",
        {"trainer": {"zero_stage": 2, "offload_parameters": True}},
    ),
    (
        '`trainer.zero_stage = 0` needs `model.trainer_dtype = "float32"`: it would sum gradients in half precision.',
        {"trainer": {"zero_stage": 0}},
    ),
    (
        '`filter.metric = "reward"` needs `filter.allow_shaped_metric = true`: the length punishment would let groups '
        "through whose responses are all wrong.",
        {"filter": {"metric": "reward"}},
    ),
    (
        "`rollout.group_size = 1` needs `filter.enable = false`: the outcomes of a single rollout are always equal.",
        {"rollout": {"group_size": 1}},
    ),
    (
        "`checkpoint.keep_best` is a metric of an evaluation set, and `evaluation.every_steps` a multiple of "
        "`checkpoint.interval`: each evaluated step has a checkpoint.",
        {"checkpoint": {"keep_best": "sums/avg@32"}},
    ),
    (
        '`filter.mode = "rounds"` needs `asynchrony.max_staleness = 0`.',
        {"filter": {"mode": "rounds", "gen_batch_size": 4}, "asynchrony": {"max_staleness": 1}},
    ),
    (
        '`filter.mode = "rounds"` needs `filter.gen_batch_size`.',
        {"filter": {"mode": "rounds"}, "asynchrony": {"max_staleness": 0}},
    ),
)
"""Rules between fields, each with fields that break it when they are put into a small valid run."""


def configuration_page() -> str:
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from sluice/config/ by `python scripts/docs.py`; edit the code, not this page. -->",
        "",
        "A run file says *what to learn*: one TOML, a table for each section below. Where things are (addresses, keys,",
        "folders) comes from the environment instead: [operations.md](operations.md#environment).",
        "",
        "Unknown keys are refused. A field without a default is required. `sluice run RUN_FILE --dry-run` prints the",
        "file with every default filled in and submits nothing; `--set section.field=value` changes one field.",
        "",
        "## The file itself",
        "",
        *_field_table((name, field) for name, field in RunSpec.model_fields.items() if name not in SECTIONS),
    ]
    for name, sentence in SECTIONS.items():
        section = RunSpec.model_fields[name].annotation
        assert isinstance(section, type) and issubclass(section, BaseModel)
        lines += ["", f"## `[{name}]`", "", sentence, "", *_field_table(section.model_fields.items())]
        for inner, entries in _tables_in(section):
            lines += ["", f"Each `[[{name}.{inner}]]`:", "", *_field_table(entries.model_fields.items())]
    lines += ["", "## Rules between fields", ""]
    lines += [f"- {sentence}" for sentence, _ in RULES]
    return "\n".join(lines) + "\n"


def _tables_in(section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Fields that are lists of tables, and what is in one."""
    for name, field in section.model_fields.items():
        for argument in typing.get_args(field.annotation):
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                yield name, argument


def _field_table(fields: Iterable[tuple[str, FieldInfo]]) -> list[str]:
    rows = [
        (f"`{name}`", type_text(field.annotation), _default_text(field), limits_text(field), field.description or "")
        for name, field in fields
    ]
    return table(("field", "type", "default", "limits", "meaning"), rows)


def type_text(annotation: Any) -> str:
    """A type as people write its values in TOML."""
    names: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "`true` or `false`", Path: "path"}
    if annotation in names:
        return names[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(argument) for argument in arguments if argument is not types.NoneType)
    if origin is tuple and arguments[-1] is Ellipsis:
        return "list of tables" if _is_table(arguments[0]) else f"list of {type_text(arguments[0])}s"
    if origin is dict:
        return f"table of {type_text(arguments[1])} by {type_text(arguments[0])}"
    if origin is tuple:
        return f"list of {len(arguments)} {type_text(arguments[0])}s"
    raise TypeError(f"scripts/docs.py has no words for the type {annotation!r}")


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def limits_text(field: FieldInfo) -> str:
    """The constraints of one field."""
    words = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "at least {}", "pattern": "`{}`"}
    found = [
        text.format(getattr(constraint, name))
        for constraint in field.metadata
        for name, text in words.items()
        if getattr(constraint, name, None) is not None
    ]
    return ", ".join(found)


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default is None:
        return "unset"
    return f"`{json.dumps(field.default)}`"
