"""The resources of the chart that Kubernetes has no schema for: those that a controller of that name brings along.

Only the fields that the chart uses, so that a slip of the pen is found; written from the controllers' own type
definitions (Prometheus operator monitoring.coreos.com/v1, KEDA 2, JobSet v1alpha2, LeaderWorkerSet v1).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class Metadata(_Strict):
    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)
    labels: dict[str, str]


class PodTemplate(_Strict):
    metadata: dict[str, Any]
    spec: dict[str, Any]
    """Validated as a Pod by Kubernetes' own schema."""


# --- Prometheus operator ----------------------------------------------------------------------------------------------


class Relabeling(_Strict):
    action: Literal["keep", "drop", "replace"]
    source_labels: list[str] = []
    regex: str | None = None
    target_label: str | None = None
    replacement: str | None = None


class Endpoint(_Strict):
    port: str
    path: str
    interval: str = Field(pattern=r"^[0-9]+(ms|s|m)$")
    relabelings: list[Relabeling] = []


class LabelSelector(_Strict):
    match_labels: dict[str, str]


class ServiceMonitorSpec(_Strict):
    selector: LabelSelector
    endpoints: list[Endpoint] = Field(min_length=1)


class ServiceMonitor(_Strict):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["ServiceMonitor"]
    metadata: Metadata
    spec: ServiceMonitorSpec


class Rule(_Strict):
    alert: str | None = None
    record: str | None = None
    expr: str | int
    for_: str | None = Field(None, alias="for")
    keep_firing_for: str | None = Field(None, alias="keep_firing_for")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RuleGroup(_Strict):
    name: str
    interval: str | None = None
    rules: list[Rule] = Field(min_length=1)


class PrometheusRuleSpec(_Strict):
    groups: list[RuleGroup] = Field(min_length=1)


class PrometheusRule(_Strict):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PrometheusRule"]
    metadata: Metadata
    spec: PrometheusRuleSpec


# --- KEDA -------------------------------------------------------------------------------------------------------------


class ScaleTarget(_Strict):
    name: str


class PrometheusQuery(_Strict):
    """KEDA takes numbers as texts."""

    server_address: str
    query: str
    threshold: str


class Trigger(_Strict):
    type: Literal["prometheus"]
    metadata: PrometheusQuery


class ScaledObjectSpec(_Strict):
    scale_target_ref: ScaleTarget
    min_replica_count: int = Field(ge=0)
    max_replica_count: int = Field(ge=1)
    cooldown_period: int = Field(ge=0)
    advanced: dict[Literal["horizontalPodAutoscalerConfig"], dict[Literal["behavior"], dict[str, Any]]]
    triggers: list[Trigger] = Field(min_length=1)


class ScaledObject(_Strict):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: ScaledObjectSpec


# --- JobSet and LeaderWorkerSet ---------------------------------------------------------------------------------------


class Network(_Strict):
    enable_dns_hostnames: bool = Field(alias="enableDNSHostnames")
    subdomain: str
    publish_not_ready_addresses: bool


class FailurePolicy(_Strict):
    max_restarts: int = Field(ge=0)


class IndexedJobSpec(_Strict):
    completion_mode: Literal["Indexed"]
    parallelism: int = Field(ge=1)
    completions: int = Field(ge=1)
    backoff_limit: int = Field(ge=0)
    template: PodTemplate


class JobTemplate(_Strict):
    spec: IndexedJobSpec


class ReplicatedJob(_Strict):
    name: str
    replicas: int = Field(ge=1)
    template: JobTemplate


class JobSetSpec(_Strict):
    network: Network
    failure_policy: FailurePolicy
    replicated_jobs: list[ReplicatedJob] = Field(min_length=1)


class JobSet(_Strict):
    api_version: Literal["jobset.x-k8s.io/v1alpha2"]
    kind: Literal["JobSet"]
    metadata: Metadata
    spec: JobSetSpec


class LeaderWorkerTemplate(_Strict):
    size: int = Field(ge=1)
    restart_policy: Literal["RecreateGroupOnPodRestart", "None"]
    worker_template: PodTemplate


class LeaderWorkerSetSpec(_Strict):
    replicas: int = Field(ge=1)
    leader_worker_template: LeaderWorkerTemplate


class LeaderWorkerSet(_Strict):
    api_version: Literal["leaderworkerset.x-k8s.io/v1"]
    kind: Literal["LeaderWorkerSet"]
    metadata: Metadata
    spec: LeaderWorkerSetSpec


KINDS: dict[str, type[BaseModel]] = {
    kind.__name__: kind for kind in (ServiceMonitor, PrometheusRule, ScaledObject, JobSet, LeaderWorkerSet)
}


def pod_templates(resource: dict[str, Any]) -> list[dict[str, Any]]:
    """Pods that a custom resource makes, for Kubernetes' schema of a Pod."""
    match resource["kind"]:
        case "JobSet":
            return [job["template"]["spec"]["template"] for job in resource["spec"]["replicatedJobs"]]
        case "LeaderWorkerSet":
            return [resource["spec"]["leaderWorkerTemplate"]["workerTemplate"]]
        case _:
            return []
