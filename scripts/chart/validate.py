"""Validate rendered resources: `python -m chart.validate 1.28 1.37 < resources.yaml`, or a JSON list of them.

Each against the schema of its kind in each of these versions of Kubernetes, unknown fields refused. Exit code 1 and a
line for each fault.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import referencing
import yaml
from pydantic import ValidationError

from chart.custom_resources import KINDS, pod_templates

Resource = dict[str, Any]


def faults(resources: Sequence[Resource], versions: Sequence[str]) -> Iterator[str]:
    """A line for each resource and version that do not fit."""
    for resource in resources:
        name = f"{resource['kind']} {resource['metadata']['name']}"
        kind = KINDS.get(resource["kind"])
        if kind is not None:
            yield from _custom_faults(name, resource)
            pods: list[Resource] = [
                {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"]}
                for pod in pod_templates(resource)
            ]
            yield from _builtin_faults(name, pods, versions)
        else:
            yield from _builtin_faults(name, [resource], versions)


def _custom_faults(name: str, resource: Resource) -> Iterator[str]:
    try:
        KINDS[resource["kind"]].model_validate(resource)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            yield f"{name}: {'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}, got {fault['input']!r}"


def _builtin_faults(name: str, resources: Sequence[Resource], versions: Sequence[str]) -> Iterator[str]:
    for resource in resources:
        for version in versions:
            validator = _validator(resource["kind"], resource["apiVersion"], version)
            if validator is None:
                yield f"{name}: Kubernetes {version} has no {resource['kind']} in {resource['apiVersion']}"
                continue
            for error in validator.iter_errors(resource):
                path = ".".join(str(part) for part in error.absolute_path)
                yield f"{name}: Kubernetes {version}: {path}: {error.message}"


@functools.cache
def _validator(kind: str, api_version: str, version: str) -> Any:
    """The validator of one kind in one version, or None when Kubernetes does not have it there.

    kubernetes-validate's own function reads a megabyte of definitions for every resource, which takes minutes here.
    """
    group, _, number = api_version.rpartition("/")
    file = f"{kind.lower()}-{group.partition('.')[0]}-{number}.json" if group else f"{kind.lower()}-{number}.json"
    schema = _schemas(version) / file
    if not schema.is_file():
        return None
    contents = json.loads(schema.read_text(encoding="utf-8"))
    registry = referencing.Resource.from_contents(contents) @ _definitions(version)
    return jsonschema.Draft202012Validator(contents, registry=registry)


@functools.cache
def _definitions(version: str) -> referencing.Registry[Any]:
    contents = json.loads((_schemas(version) / "_definitions.json").read_text(encoding="utf-8"))
    registry: referencing.Registry[Any] = referencing.Resource.from_contents(contents) @ referencing.Registry()
    return registry


def _schemas(version: str) -> Traversable:
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
    (found,) = (f for f in folder.iterdir() if f.name.startswith(f"v{version}.") and f.name.endswith("-local-strict"))
    return found


def main() -> int:
    text = sys.stdin.read()
    # JSON, which the tests send, is YAML too, but YAML's parser is many times slower.
    resources = json.loads(text) if text.startswith("[") else [r for r in yaml.safe_load_all(text) if r]
    found = list(faults(resources, sys.argv[1:]))
    for fault in found:
        print(fault, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
