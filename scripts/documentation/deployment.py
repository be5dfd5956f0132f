"""Environment variables and metrics, as each service's config.py and metrics.py declare them."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from documentation.markdown import table

SERVICES = ("coordinator", "rollout", "engine", "reward", "trainer")

DEFAULTS = {"SLUICE_REWARD_WORKERS": "number of CPUs"}
SENTENCES = {"SLUICE_REWARD_WORKERS": "Worker processes of one replica."}
"""For variables whose field computes its default or carries no sentence."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable of one service."""

    name: str
    service: str
    default: str
    meaning: str


def variables() -> list[Variable]:
    """Every environment variable that a service's config.py reads."""
    found = [variable for service in SERVICES for variable in _variables_of(service)]
    said = SENTENCES | {variable.name: variable.meaning for variable in found if variable.meaning}
    return [Variable(v.name, v.service, v.default, said[v.name]) for v in found]


def environment_table() -> list[str]:
    """One row for each variable; those that several services read come first."""
    by_name: dict[str, list[Variable]] = {}
    for variable in variables():
        by_name.setdefault(variable.name, []).append(variable)
    rows = []
    for name, readers in sorted(by_name.items(), key=lambda item: len(item[1]) == 1):
        services = ", ".join(reader.service for reader in readers)
        defaults = " / ".join(dict.fromkeys(reader.default for reader in readers))
        rows.append((f"`{name}`", services, defaults, readers[0].meaning))
    return table(("variable", "read by", "default", "meaning"), rows)


def _variables_of(service: str) -> Iterator[Variable]:
    module = importlib.import_module(f"services.{service}.config")
    model = _settings_model(module)
    docstrings = _attribute_docstrings(model)
    names = getattr(module, "ENVIRONMENT", {})
    prefix = getattr(module, "ENVIRONMENT_PREFIX", "")
    for field_name, field in model.model_fields.items():
        name = names.get(field_name) or field.alias or prefix + field_name.upper()
        meaning = field.description or docstrings.get(field_name, "")
        yield Variable(name, service, DEFAULTS.get(name) or _environment_default(field), meaning)


def _settings_model(module: types.ModuleType) -> type[BaseModel]:
    models = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
    ]
    if len(models) != 1:
        raise TypeError(f"{module.__name__} has {len(models)} settings models; scripts/docs.py expects one")
    return models[0]


def _attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The string under each field of a class, which Python itself does not keep."""
    body = typing.cast(ast.ClassDef, ast.parse(inspect.getsource(model)).body[0]).body
    found = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def _environment_default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    default = field.default
    if default in (None, "", (), {}):
        return "none"
    if isinstance(default, tuple):
        return f"`{','.join(map(str, default))}`"
    if isinstance(default, int) and default >= 1 << 30 and default % (1 << 30) == 0:
        return f"`{default}` ({default >> 30} GiB)"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{json.dumps(default) if isinstance(default, bool) else default}`"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as Prometheus scrapes it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics_of(service: str) -> list[Metric]:
    """Every metric that a service's metrics.py declares, in its order."""
    module = importlib.import_module(f"services.{service}.metrics")
    of_module = [v for entry in vars(module).values() for v in (entry.values() if isinstance(entry, dict) else [entry])]
    metrics = [value for value in of_module if isinstance(value, MetricWrapperBase)]
    if service == "coordinator":
        registry = CollectorRegistry()
        module.CoordinatorMetrics(registry)
        metrics = _registered(registry) + metrics
    if service == "engine":
        metrics = _registered(module.EngineMetrics("", 1, module.EngineState).registry)
    return _read_metrics(dict.fromkeys(metrics))


def metrics_tables() -> list[str]:
    """A table for each service."""
    lines: list[str] = []
    for service in SERVICES:
        rows = [
            (f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.meaning)
            for m in metrics_of(service)
        ]
        lines += [f"## {service}", "", *table(("metric", "type", "labels", "meaning"), rows), ""]
    return lines[:-1]


def _registered(registry: CollectorRegistry) -> list[MetricWrapperBase]:
    declared = registry._collector_to_names  # the client lists by samples only, and unused labels have none
    return [collector for collector in declared if isinstance(collector, MetricWrapperBase)]


def _read_metrics(collectors: Iterable[MetricWrapperBase]) -> list[Metric]:
    found = []
    for collector in collectors:
        family = next(iter(collector.describe()))
        suffix = "_total" if family.type == "counter" else ""
        meaning = " ".join(family.documentation.split())
        found.append(Metric(family.name + suffix, family.type, tuple(collector._labelnames), meaning))
    return found
