{{/* Who may talk to whom. Each service's file says who may call it; nothing else may. */}}

{{/*
A policy that lets in what its rules say. Takes (list CONTEXT COMPONENT RULES), with a rule as
{port: 8000, from: [components]} or {port: 8000, peers: [NetworkPolicy peers]}; without a port all ports are open.
*/}}
{{- define "sluice.networkPolicy" -}}
{{- $ := index . 0 -}}
{{- if $.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "sluice.name" . }}
  labels: {{- include "sluice.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "sluice.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    {{- range index . 2 }}
    - from:
        {{- range .from }}
        - podSelector:
            matchLabels: {{- include "sluice.selector" (list $ .) | nindent 14 }}
        {{- end }}
        {{- with .peers }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .port }}
      ports:
        - {protocol: TCP, port: {{ . }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}
