"""Validate rendered resources: `python -m chart.validate 1.28 1.37 < resources.yaml`.

Each against the schema of its kind in each of these versions of Kubernetes, unknown fields refused. Exit code 1 and a
line for each fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it ships no types
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
            try:
                kubernetes_validate.validate(resource, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{name}: Kubernetes {version}: {'.'.join(str(part) for part in error.path)}: {error.message}"
            except kubernetes_validate.SchemaNotFoundError as error:
                yield f"{name}: Kubernetes {version}: {error.message}"


def main() -> int:
    resources = [resource for resource in yaml.safe_load_all(sys.stdin) if resource]
    found = list(faults(resources, sys.argv[1:]))
    for fault in found:
        print(fault, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
