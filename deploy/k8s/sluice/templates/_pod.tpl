{{/* Parts of pods that the services share. */}}

{{/* Who the pod is and where it may run; takes (list CONTEXT COMPONENT SETTINGS). */}}
{{- define "sluice.podSettings" -}}
{{- $ := index . 0 -}}
{{- $selector := include "sluice.selector" . | fromYaml -}}
{{- $settings := index . 2 -}}
serviceAccountName: {{ include "sluice.serviceAccount" $ }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $.Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $settings.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $settings.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $settings.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $settings.topologySpread }}
topologySpreadConstraints:
{{- range . }}
  - {{- merge (dict "labelSelector" (dict "matchLabels" $selector)) . | toYaml | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels and annotations of a pod; takes (list CONTEXT COMPONENT SETTINGS). */}}
{{- define "sluice.podMetadata" -}}
labels: {{- include "sluice.labels" . | nindent 2 }}
{{- with (index . 2).podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a container may do; its last words are shown by `kubectl describe`, so that no restart hides a reason. */}}
{{- define "sluice.containerRules" -}}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Variables of a service, those of the user over the chart's; takes (list CONTEXT CHART_DICT USER_DICT). */}}
{{- define "sluice.env" -}}
{{- $ := index . 0 -}}
{{- $common := dict "HOME" "/tmp" "HF_HUB_OFFLINE" "1" "TOKENIZERS_PARALLELISM" "false" "PYTHONUNBUFFERED" "1" -}}
{{- range $name, $value := merge (deepCopy (index . 2)) (index . 1) $common }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{/*
For those who speak to NATS or Redis, as YAML: whom to trust. For nobody else: it takes the place of the public
authorities, without which no model can be downloaded.
*/}}
{{- define "sluice.trust" -}}
{{- if .Values.tls.caSecret -}}
SSL_CERT_FILE: /etc/sluice/ca/ca.crt
{{- end }}
{{- end }}

{{/* For torch on a CPU, as YAML: one thread a core that it has, and large tensors stay with the process. */}}
{{- define "sluice.cpuEnv" -}}
OMP_NUM_THREADS: {{ . | quote }}
MALLOC_MMAP_MAX_: "0"
MALLOC_TRIM_THRESHOLD_: "1000000000000"
MALLOC_TOP_PAD_: "268435456"
{{- end }}

{{- define "sluice.natsEnv" -}}
{{- if .Values.nats.enabled }}
- name: NATS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "sluice.secret" . }}, key: nats-password}}
- name: SLUICE_NATS_URL
  value: {{ empty .Values.nats.tls.secret | ternary "nats" "tls" }}://sluice:$(NATS_PASSWORD)@{{ include "sluice.name" (list . "nats") }}:4222
{{- else }}
- name: SLUICE_NATS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.nats.external.urlSecret }}, key: url}}
{{- end }}
{{- end }}

{{- define "sluice.redisEnv" -}}
{{- if .Values.redis.external.urlSecret }}
- name: SLUICE_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.external.urlSecret }}, key: url}}
{{- else if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "sluice.secret" . }}, key: redis-password}}
- name: SLUICE_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "sluice.name" (list . "redis") }}:6379/0
{{- end }}
{{- end }}

{{/* A container that ends once what it is told to wait for is there; takes (list CONTEXT IMAGE ARGUMENTS...). */}}
{{- define "sluice.wait" -}}
{{- $ := index . 0 -}}
- name: wait
  image: {{ include "sluice.image" (list $ (index . 1)) }}
  imagePullPolicy: {{ $.Values.images.pullPolicy }}
  command: [python, /etc/sluice/scripts/wait_for.py]
  args:
    {{- range rest (rest .) }}
    - {{ . }}
    {{- end }}
  {{- if has "nats" . }}
  env:
    {{- include "sluice.natsEnv" $ | trim | nindent 4 }}
  {{- end }}
  {{- include "sluice.containerRules" $ | nindent 2 }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 128Mi}
  volumeMounts:
    - {name: scripts, mountPath: /etc/sluice/scripts, readOnly: true}
    - {name: assets, mountPath: /assets, readOnly: true}
{{- end }}

{{/* `file:` arguments of wait_for.py for all that assets.prepare makes, as a JSON list. */}}
{{- define "sluice.assetFiles" -}}
{{- $files := list -}}
{{- range .Values.assets.prepare }}
{{- $files = append $files (printf "file:%s" (include "sluice.assetMarker" (list .))) -}}
{{- end }}
{{- toJson $files -}}
{{- end }}

{{/* Volumes of every pod of ours: a place for temporary files, our scripts, the models, and whom to trust. */}}
{{- define "sluice.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: scripts, configMap: {name: {{ include "sluice.name" (list . "scripts") }}}}
- {name: assets, persistentVolumeClaim: {claimName: {{ include "sluice.assetsClaim" . }}}}
{{- with .Values.tls.caSecret }}
- {name: ca, secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- end }}

{{- define "sluice.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: assets, mountPath: /assets, readOnly: true}
{{- if .Values.tls.caSecret }}
- {name: ca, mountPath: /etc/sluice/ca, readOnly: true}
{{- end }}
{{- end }}

{{/* Started, ready, alive: three questions to a service's own server. Takes (list PORT START_SECONDS). */}}
{{- define "sluice.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ index . 0 }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (index . 1) 5 }}
readinessProbe:
  httpGet: {path: /readyz, port: {{ index . 0 }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: {{ index . 0 }}}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- end }}

{{/* Ends when a pod does: the cluster may move one pod of a component at a time. Takes (list CONTEXT COMPONENT). */}}
{{- define "sluice.podDisruptionBudget" -}}
{{- if (index . 0).Values.podDisruptionBudgets.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "sluice.name" . }}
  labels: {{- include "sluice.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  # A pod that is not ready guards nothing: it may always be moved.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "sluice.selector" . | nindent 6 }}
{{- end }}
{{- end }}
