{{/* Names and labels. Those that take a list take (list CONTEXT COMPONENT). */}}

{{- define "sluice.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- /* A release may have dots in its name, a Service may not. */}}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "sluice.name" -}}
{{- printf "%s-%s" (include "sluice.fullname" (index . 0)) (index . 1) -}}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ default (index . 0).Chart.Name (index . 0).Values.nameOverride }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* One of Sluice's own images. */}}
{{- define "sluice.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- $name := printf "%s:%s" (index $images (index . 1)) (default (index . 0).Chart.AppVersion $images.tag) -}}
{{- with $images.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $name -}}
{{- end }}

{{- define "sluice.secret" -}}
{{- default (include "sluice.name" (list . "auth")) .Values.auth.existingSecret -}}
{{- end }}

{{- define "sluice.assetsClaim" -}}
{{- default (include "sluice.name" (list . "assets")) .Values.assets.existingClaim -}}
{{- end }}

{{- define "sluice.dataClaim" -}}
{{- default (include "sluice.name" (list . "data")) .Values.data.existingClaim -}}
{{- end }}

{{/* Whether a pod on any node may mount the claim of `data`: "true", or nothing. */}}
{{- define "sluice.dataForAll" -}}
{{- or .Values.singleNode (has "ReadWriteMany" .Values.data.accessModes) | ternary "true" "" -}}
{{- end }}

{{- define "sluice.apiUrl" -}}
http://{{ include "sluice.name" (list . "coordinator") }}:8000
{{- end }}

{{/* A full name: gRPC's own resolver need not know the cluster's short ones. It finds all replicas behind it. */}}
{{- define "sluice.rewardAddress" -}}
dns:///{{ include "sluice.name" (list . "reward") }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:50051
{{- end }}

{{/* What is to be trained, as the submitting Job says it: a change is a new run. */}}
{{- define "sluice.runKey" -}}
{{- $run := .Values.run -}}
{{- list $run.file $run.modelPath $run.trainFiles $run.engineDtype $run.weightsTransport $run.overrides $run.key | toJson | sha256sum | trunc 10 -}}
{{- end }}

{{/* The file that says that a command of assets.prepare has ended well; takes (list STEP). */}}
{{- define "sluice.assetMarker" -}}
/assets/.complete/{{ (index . 0).path | replace "/" "-" }}-{{ toJson (index . 0) | sha256sum | trunc 10 }}
{{- end }}
