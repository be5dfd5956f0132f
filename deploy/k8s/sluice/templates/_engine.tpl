{{/* The engine's container, but for what both kinds share: image, command line, rights and resources. */}}
{{- define "sluice.engine" -}}
{{- $engine := .Values.rollout.engine -}}
{{- if eq $engine.kind "sglang" -}}
image: {{ .Values.images.sglang }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
command: [python3, -m, sglang.launch_server]
args:
  - --model-path={{ .Values.run.modelPath }}
  - --host=0.0.0.0
  - --port=30000
  - --api-key=$(ENGINE_API_KEY)
  - --dtype={{ .Values.run.engineDtype }}
  - --tensor-parallel-size={{ $engine.tensorParallel }}
  - --mem-fraction-static={{ $engine.memoryFraction }}
  # Ids in, ids and log-probs out: nothing is tokenised twice.
  - --skip-tokenizer-init
  - --enable-metrics
  {{- range $engine.args }}
  - {{ . | quote }}
  {{- end }}
env:
  - name: ENGINE_API_KEY
    valueFrom: {secretKeyRef: {name: {{ include "sluice.secret" . }}, key: engine-api-key}}
  # Whoever asks /health must not be told that a paused engine is dead.
  {{- include "sluice.env" (list . (dict "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" "false") $engine.env) | trim | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
# SGLang compiles kernels at its start and writes them under its home.
securityContext:
  runAsUser: {{ int $engine.runAsUser }}
  runAsNonRoot: {{ ne (int $engine.runAsUser) 0 }}
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
resources:
  requests: {{- toYaml $engine.resources.requests | nindent 4 }}
  limits: {{- merge (dict $engine.gpuResource $engine.tensorParallel) $engine.resources.limits | toYaml | nindent 4 }}
{{- else -}}
image: {{ include "sluice.image" (list . "engine") }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
command: [python, -m, services.engine]
{{- with $engine.args }}
args: {{- toYaml . | nindent 2 }}
{{- end }}
env:
  - name: ENGINE_API_KEY
    valueFrom: {secretKeyRef: {name: {{ include "sluice.secret" . }}, key: engine-api-key}}
  {{- $env := dict
    "ENGINE_MODEL" .Values.run.modelPath
    "ENGINE_HOST" "0.0.0.0"
    "ENGINE_PORT" "30000"
    "ENGINE_DTYPE" .Values.run.engineDtype
    "ENGINE_THREADS" $engine.threads
  }}
  {{- $env = merge $env (include "sluice.cpuEnv" $engine.threads | fromYaml) }}
  {{- include "sluice.env" (list . $env $engine.env) | trim | nindent 2 }}
{{ include "sluice.containerRules" . }}
resources: {{- toYaml $engine.resources | nindent 2 }}
{{- end }}
{{- end }}
