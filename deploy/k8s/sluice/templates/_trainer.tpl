{{/* The trainer's pod, the same under a StatefulSet, a JobSet and a LeaderWorkerSet. */}}

{{/*
How the ranks find one another. Under a StatefulSet torchrun's agents meet at pod 0 and all start their ranks anew when
one dies; they rank themselves by address, so pod 0, whose name sorts first, has rank 0 and with it the stable name.
The two controllers start all pods anew themselves, so there the pod's index is its rank for good.
*/}}
{{- define "sluice.trainer.command" -}}
{{- $trainer := .Values.trainer -}}
{{- $name := include "sluice.name" (list . "trainer") -}}
{{- if and (eq (int $trainer.nodes) 1) (eq (int $trainer.ranksPerNode) 1) -}}
command: [python, -m, services.trainer]
{{- else -}}
command: [python, -m, services.trainer.launch]
args:
  - --nnodes={{ $trainer.nodes }}
  - --nproc-per-node={{ $trainer.ranksPerNode }}
  {{- if eq $trainer.kind "StatefulSet" }}
  {{- $domain := printf "%s.%s.svc.%s" $name .Release.Namespace .Values.clusterDomain }}
  - --rdzv-backend=c10d
  - --rdzv-endpoint={{ $name }}-0.{{ $domain }}:29400
  - --rdzv-id={{ $name }}
  - --local-addr=$(POD_NAME).{{ $domain }}
  - --max-restarts={{ $trainer.maxRestarts }}
  {{- else }}
  - --node-rank=$({{ eq $trainer.kind "JobSet" | ternary "JOB_COMPLETION_INDEX" "LWS_WORKER_INDEX" }})
  - --master-addr={{ eq $trainer.kind "JobSet" | ternary (printf "%s-ranks-0-0.%s" $name $name) "$(LWS_LEADER_ADDRESS)" }}
  - --master-port=29500
  - --max-restarts=0
  {{- end }}
{{- end }}
{{- end }}

{{/* The name under which workers reach rank 0, whichever pod is there at the time. */}}
{{- define "sluice.trainer.first" -}}
{{- $name := include "sluice.name" (list . "trainer") -}}
{{- eq .Values.trainer.kind "JobSet" | ternary (printf "%s-ranks-0-0.%s" $name $name) (printf "%s-0.%s" $name $name) -}}
{{- end }}

{{- define "sluice.trainer.pod" -}}
{{- $trainer := .Values.trainer -}}
{{- $env := dict
  "SLUICE_DATA_DIR" "/data"
  "SLUICE_LEASE_SECONDS" $trainer.leaseSeconds
  "SLUICE_ALLOW_REMOTE_CODE" .Values.coordinator.allowRemoteCode
  "SLUICE_TRAINER_DEVICE" $trainer.device
  "SLUICE_TRAINER_THREADS" $trainer.threads
  "SLUICE_TRAINER_COLLECTIVE_SECONDS" $trainer.collectiveSeconds
  "SLUICE_WEIGHTS_BIND" "0.0.0.0:50061"
  "SLUICE_WEIGHTS_ADVERTISE" (printf "%s:50061" (include "sluice.trainer.first" .))
  "SLUICE_METRICS_HOST" "0.0.0.0"
  "SLUICE_METRICS_PORT" "9103"
  "SLUICE_LOG_LEVEL" $trainer.logLevel
-}}
{{- if eq $trainer.device "cpu" }}
{{- $env = merge $env (include "sluice.cpuEnv" $trainer.threads | fromYaml) }}
{{- end }}
{{- if eq $trainer.kind "StatefulSet" }}
{{- /* torchrun's agents would hand restarted ranks the store of the ranks before them, with addresses of the dead. */}}
{{- $_ := set $env "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" "1" }}
{{- end }}
{{- $gpus := eq $trainer.device "cuda" | ternary (dict $trainer.gpuResource $trainer.ranksPerNode) dict -}}
{{ include "sluice.podSettings" (list . "trainer" $trainer) }}
# Nothing is lost when a trainer is cut off: the next one replays from the newest checkpoint.
terminationGracePeriodSeconds: 60
{{- if $trainer.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
initContainers:
  {{- include "sluice.wait" (list . "trainer" "nats") | nindent 2 }}
containers:
  - name: trainer
    image: {{ include "sluice.image" (list . "trainer") }}
    imagePullPolicy: {{ .Values.images.pullPolicy }}
    {{- include "sluice.trainer.command" . | nindent 4 }}
    env:
      - name: POD_NAME
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
      {{- include "sluice.natsEnv" . | trim | nindent 6 }}
      {{- include "sluice.env" (list . (merge $env (include "sluice.trust" . | fromYaml)) $trainer.env) | trim | nindent 6 }}
    ports:
      - {name: metrics, containerPort: 9103}
      - {name: weights, containerPort: 50061}
    # The pod's first rank answers; until all ranks have met, and while it waits for a run, it is alive and ready.
    {{- include "sluice.probes" (list "metrics" 600) | nindent 4 }}
    terminationMessagePolicy: FallbackToLogsOnError
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
        {{- with $trainer.addCapabilities }}
        add: {{ toJson . }}
        {{- end }}
    resources:
      requests: {{- merge (deepCopy $trainer.extraResources) $trainer.resources.requests | toYaml | nindent 8 }}
      limits: {{- merge $gpus (deepCopy $trainer.extraResources) $trainer.resources.limits | toYaml | nindent 8 }}
    volumeMounts:
      {{- include "sluice.mounts" . | nindent 6 }}
      - {name: shm, mountPath: /dev/shm}
      - {name: data, mountPath: /data}
volumes:
  {{- include "sluice.volumes" . | nindent 2 }}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ int $trainer.sharedMemoryGiB }}Gi}}
  - {name: data, persistentVolumeClaim: {claimName: {{ include "sluice.dataClaim" . }}}}
{{- end }}
