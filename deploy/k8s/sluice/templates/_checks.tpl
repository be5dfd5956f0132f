{{/* What values.schema.json cannot say: values that do not fit together. */}}
{{- define "sluice.checks" -}}
{{- include "sluice.checkNames" . }}
{{- include "sluice.checkEnv" . }}
{{- $values := .Values -}}
{{- $one := or $values.singleNode (has "ReadWriteMany" $values.data.accessModes) $values.data.existingClaim -}}
{{- if and (gt (int $values.trainer.nodes) 1) (not $one) }}
{{- fail (printf "trainer.nodes=%d: all of them write checkpoints to the claim of `data`, whose accessModes are %s; it needs ReadWriteMany (data.accessModes)" (int $values.trainer.nodes) (toJson $values.data.accessModes)) }}
{{- end }}
{{- if and (eq $values.run.weightsTransport "shared") (not $one) }}
{{- fail (printf "run.weightsTransport=shared: trainer and engines share the claim of `data`, whose accessModes are %s; set data.accessModes=[ReadWriteMany], run.weightsTransport=grpc, or singleNode=true" (toJson $values.data.accessModes)) }}
{{- end }}
{{- if not (or $values.singleNode $values.assets.existingClaim (has "ReadWriteMany" $values.assets.accessModes)) }}
{{- fail (printf "assets.accessModes=%s: every service reads the models, on several nodes; set [ReadWriteMany], assets.existingClaim, or singleNode=true" (toJson $values.assets.accessModes)) }}
{{- end }}
{{- if and (not $values.nats.enabled) (not $values.nats.external.urlSecret) }}
{{- fail "nats.enabled=false: name a Secret with the URL of your own NATS in nats.external.urlSecret" }}
{{- end }}
{{- if and $values.nats.enabled $values.nats.external.urlSecret }}
{{- fail "nats.external.urlSecret is set, and nats.enabled=true would start a second NATS; set nats.enabled=false" }}
{{- end }}
{{- if and $values.nats.enabled (lt (include "sluice.natsFileBytes" . | int64) (mul (add (int $values.nats.rolloutsGiB) (int $values.nats.groupsGiB) 3) 1073741824)) }}
{{- fail (printf "nats.storage.sizeGiB=%d, of which streams get 95 %%, cannot hold nats.rolloutsGiB=%d, nats.groupsGiB=%d and 3 GiB for the other streams" (int $values.nats.storage.sizeGiB) (int $values.nats.rolloutsGiB) (int $values.nats.groupsGiB)) }}
{{- end }}
{{- $servers := dig "spec" "replicas" 0 (lookup "apps/v1" "StatefulSet" .Release.Namespace (include "sluice.name" (list . "nats")) | default dict) | int }}
{{- /* One server alone keeps no record of its streams that a cluster could read, and the other way round. */}}
{{- if and $values.nats.enabled $servers (ne $servers (int $values.nats.replicas)) (or (eq $servers 1) (eq (int $values.nats.replicas) 1)) }}
{{- fail (printf "nats.replicas=%d: this release runs %d, and a change from or to one server would delete every stream, the ledger of runs included; leave it, or move the streams as UPGRADING.md says" (int $values.nats.replicas) $servers) }}
{{- end }}
{{- if and $values.nats.tls.secret (not $values.tls.caSecret) }}
{{- fail "nats.tls.secret is set: our clients need the authority that signed it in tls.caSecret" }}
{{- end }}
{{- if and $values.rollout.autoscaling.enabled (not $values.rollout.autoscaling.prometheusAddress) }}
{{- fail "rollout.autoscaling.enabled=true: KEDA asks a Prometheus for the queue; set rollout.autoscaling.prometheusAddress" }}
{{- end }}
{{- if and $values.rollout.autoscaling.enabled (gt (int $values.rollout.autoscaling.groupsPerWorker) (int $values.rollout.maxGroupsInFlight)) }}
{{- fail (printf "rollout.autoscaling.groupsPerWorker=%d is above rollout.maxGroupsInFlight=%d, so pods would be added too late" (int $values.rollout.autoscaling.groupsPerWorker) (int $values.rollout.maxGroupsInFlight)) }}
{{- end }}
{{- range $service, $scaling := dict "reward" $values.reward.autoscaling "rollout" $values.rollout.autoscaling }}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- fail (printf "%s.autoscaling.minReplicas=%d is above maxReplicas=%d" $service (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- end }}
{{- end }}
{{- if and $values.run.file (not $values.run.trainFiles) }}
{{- fail "run.file is set: say in run.trainFiles where the coordinator sees the training files, e.g. [/assets/train.parquet]" }}
{{- end }}
{{- if and $values.coordinator.ingress.enabled (not $values.coordinator.ingress.host) }}
{{- fail "coordinator.ingress.enabled=true: set coordinator.ingress.host" }}
{{- end }}
{{- if and (eq $values.trainer.kind "StatefulSet") $values.trainer.hostNetwork (gt (int $values.trainer.nodes) 1) }}
{{- fail "trainer.hostNetwork=true: on the node's network a pod cannot tell by its name that it is the first one; with several nodes set trainer.kind to JobSet or LeaderWorkerSet" }}
{{- end }}
{{- if and $values.trainer.hostNetwork $values.networkPolicy.enabled $values.nats.enabled (not $values.networkPolicy.trainerFrom) }}
{{- fail "trainer.hostNetwork=true: no policy knows a pod on the node's network by its labels, so NATS would refuse the trainer; name the nodes' addresses in networkPolicy.trainerFrom, e.g. [{ipBlock: {cidr: 10.0.0.0/16}}]" }}
{{- end }}
{{- end }}

{{/* What Kubernetes takes as the name of a Service, and leaves room for in the name of a pod. */}}
{{- define "sluice.checkNames" -}}
{{- $name := include "sluice.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) }}
{{- fail (printf "the names of resources would begin with %q, and a Service's must begin with a letter; set fullnameOverride" $name) }}
{{- end }}
{{- $pod := printf "%s-trainer-ranks-0-%d-abcde" $name (sub (int .Values.trainer.nodes) 1) -}}
{{- if and (eq .Values.trainer.kind "JobSet") (gt (len $pod) 63) }}
{{- fail (printf "trainer.kind=JobSet: its pods would have names like %s, of %d characters, and 63 are the limit; set fullnameOverride to a shorter name than %s" $pod (len $pod) $name) }}
{{- end }}
{{- end }}

{{/* Variables that the chart takes from Secrets or the pod itself: another value beside them would be a second one. */}}
{{- define "sluice.checkEnv" -}}
{{- $values := .Values -}}
{{- $nats := list "NATS_PASSWORD" "SLUICE_NATS_URL" -}}
{{- $redis := list "REDIS_PASSWORD" "SLUICE_REDIS_URL" -}}
{{- $taken := dict
  "coordinator" (concat $nats $redis (list "SLUICE_API_TOKEN"))
  "reward" (list "SLUICE_REDIS_URL")
  "rollout" (concat $nats $redis (list "SLUICE_ENGINE_API_KEY" "SLUICE_WORKER_NAME"))
  "trainer" (concat $nats (list "POD_NAME"))
-}}
{{- range $service, $names := $taken }}
{{- include "sluice.checkEnvOf" (list $service (index $values $service).env $names) }}
{{- end }}
{{- include "sluice.checkEnvOf" (list "rollout.engine" $values.rollout.engine.env (list "ENGINE_API_KEY")) }}
{{- end }}

{{- define "sluice.checkEnvOf" -}}
{{- $where := index . 0 -}}
{{- $given := index . 1 -}}
{{- range index . 2 }}
{{- if hasKey $given . }}
{{- fail (printf "%s.env.%s: the chart sets this one, from a Secret or from the pod's name; use auth.existingSecret, nats.external.urlSecret, redis.external.urlSecret or reward.cacheUrlSecret" $where .) }}
{{- end }}
{{- end }}
{{- end }}
