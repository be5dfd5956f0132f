"""A run file as it will be submitted: read, overridden, and shown with all its defaults and what follows from them."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.config.load import UNSET
from sluice.errors import ConfigError


def resolve(file: Path, overrides: Sequence[str]) -> RunSpec:
    """The spec in `file` with each `section.key=value` put in place; values are written as in TOML, or plain text.

    Raises:
        ConfigError: the file or an override is wrong.
    """
    spec = load_run_spec(file)
    if not overrides:
        return spec
    return parse_run_spec(put_overrides(spec.model_dump(), overrides))


def put_overrides(fields: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`fields` with each `section.key=value` put into its tables. Raises: ConfigError: one is written otherwise."""
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set {override}: write section.key=value, e.g. --set trainer.total_steps=5")
        _put(fields, path.strip(), _value(text.strip()))
    return fields


def to_toml(spec: RunSpec) -> str:
    """The spec as a run file with every field; fields that are unset say so."""
    fields = spec.model_dump(mode="json")
    lines = list(_pairs({k: v for k, v in fields.items() if not isinstance(v, dict)}))
    for section, values in fields.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *_pairs(values)]
    return "\n".join(lines) + "\n"


def arithmetic(spec: RunSpec) -> list[tuple[str, str]]:
    """What the numbers of the spec mean together: (what, how much) lines."""
    t, r, d, eta = spec.trainer, spec.rollout, spec.data, spec.asynchrony.max_staleness
    rollouts = t.prompts_per_step * r.group_size
    updates = t.updates_per_step * t.epochs_per_step
    row = d.max_prompt_length + r.max_response_length
    in_flight = min(eta + 1, t.total_steps) * t.prompts_per_step
    checkpoints = math.ceil(t.total_steps / spec.checkpoint.interval)
    return [
        ("config hash", spec.config_hash),
        ("a training step", f"{t.prompts_per_step} kept groups × {r.group_size} rollouts = {rollouts} rollouts"),
        ("an optimizer update", f"{rollouts // t.updates_per_step} rollouts; {updates} in a training step"),
        (
            "the whole run",
            f"{t.total_steps} training steps, {t.total_steps * updates} optimizer updates, "
            f"{t.total_steps * t.prompts_per_step} kept groups; dropped groups come on top",
        ),
        ("groups not yet trained", f"at most {in_flight} = (max_staleness {eta} + 1) × {t.prompts_per_step}"),
        (
            "tokens of a row",
            f"at most {row} = {d.max_prompt_length} prompt + {r.max_response_length} response; "
            f"at least {spec.micro_batch_tokens // row} rows fit into a micro-batch of "
            f"{spec.micro_batch_tokens} tokens",
        ),
        ("response tokens", f"at most {rollouts * r.max_response_length} in a training step"),
        ("checkpoints", f"{checkpoints}, of which the newest {spec.checkpoint.keep} are kept{_and_every(spec)}"),
        *([("evaluations", _evaluations(spec))] if spec.evaluation.sets else []),
    ]


def _evaluations(spec: RunSpec) -> str:
    e, total = spec.evaluation, spec.trainer.total_steps
    due = sum(number == total or e.due(number, 0) for number in range(total + 1))
    sets = ", ".join(chosen.name for chosen in e.sets)
    return f"{due} on {sets}, with {e.samples} responses to each problem; at most {e.max_servers} rollout workers at it"


def _and_every(spec: RunSpec) -> str:
    every = spec.checkpoint.keep_every
    return f", and each of a step that {every} divides" if every else ""


def _put(fields: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        inner = fields.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {path}: {section} is a value, not a section")
        fields = inner
    fields[key] = value


def _value(text: str) -> Any:
    """A TOML value; a word that is none is a string, so that a shell need not quote twice."""
    if text in ("none", UNSET):
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _pairs(values: dict[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    """JSON's strings, numbers, booleans and lists are TOML's too; an unset field is said to be so."""
    if value is None:
        return json.dumps(UNSET)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
