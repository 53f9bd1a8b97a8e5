{{- define "epp.name" -}}
{{ .Release.Name | replace "." "-" }}
{{- end }}

{{/* What makes these pods this release's, never changed: a Deployment's selector cannot be. */}}
{{- define "epp.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "epp.labels" -}}
{{ include "epp.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* instances, pool or pods */}}
{{- define "epp.source" -}}
{{- if .Values.workers.source -}}
{{ .Values.workers.source }}
{{- else if .Values.modelServers.matchLabels -}}
{{ ternary "pool" "pods" .Values.inferencePool.create }}
{{- else -}}
instances
{{- end -}}
{{- end }}

{{/* What makes a pod an instance (seed 002): the selector of the Service that charts/worker makes. */}}
{{- define "epp.instanceLabels" -}}
nvidia.com/dynamo-namespace: {{ required "namespace is required: of the workers, as charts/worker was told" .Values.namespace | quote }}
nvidia.com/dynamo-component: {{ required "component is required: of the workers, as charts/worker was told" .Values.component | quote }}
{{- end }}

{{- define "epp.matchLabels" -}}
{{- if not .Values.modelServers.matchLabels -}}
{{- fail "modelServers.matchLabels is required: the labels of the model servers' Pods, as {app: vllm}" -}}
{{- end -}}
{{ toYaml .Values.modelServers.matchLabels }}
{{- end }}

{{/* What the InferencePool selects. */}}
{{- define "epp.poolSelector" -}}
{{- if eq (include "epp.source" .) "instances" -}}
{{ include "epp.instanceLabels" . }}
{{- else -}}
{{ include "epp.matchLabels" . }}
{{- end -}}
{{- end }}

{{/* As --endpoint-selector takes it: k=v,k2=v2 */}}
{{- define "epp.endpointSelector" -}}
{{- $pairs := list -}}
{{- range $name, $value := include "epp.matchLabels" . | fromYaml -}}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) -}}
{{- end -}}
{{ join "," $pairs }}
{{- end }}

{{- define "epp.targetPorts" -}}
{{- $ports := list -}}
{{- range .Values.modelServers.targetPorts -}}
{{- $ports = append $ports (int .number | toString) -}}
{{- end -}}
{{ join "," $ports }}
{{- end }}

{{- define "epp.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "epp.name" .) }}
{{- else -}}
{{ required "serviceAccount.name is required where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{- define "epp.workersNamespace" -}}
{{ .Values.workers.kubernetesNamespace | default .Release.Namespace }}
{{- end }}

{{- define "epp.poolName" -}}
{{ .Values.inferencePool.name | default (include "epp.name" .) }}
{{- end }}

{{- define "epp.discovery" -}}
kubernetes://{{ include "epp.workersNamespace" . }}
{{- if ne .Values.workers.serviceTemplate "dynamo-{component}-service" -}}
?service={{ urlquery .Values.workers.serviceTemplate }}
{{- end -}}
{{- end }}

{{/* The flags that say whose requests are distributed. */}}
{{- define "epp.sourceArgs" -}}
{{- $source := include "epp.source" . -}}
{{- if eq $source "pods" -}}
- {{ printf "--endpoint-selector=%s" (include "epp.endpointSelector" .) | quote }}
- --endpoint-target-ports={{ include "epp.targetPorts" . }}
{{- else if eq $source "pool" -}}
- --pool-name={{ include "epp.poolName" . }}
- --pool-namespace={{ .Release.Namespace }}
- --pool-group=inference.networking.k8s.io
{{- else -}}
- --discovery={{ include "epp.discovery" . }}
- --namespace={{ .Values.namespace }}
- --component={{ .Values.component }}
- --pool-name={{ include "epp.poolName" . }}
{{- end -}}
{{- end }}

{{/* Whole numbers as they are: a template prints a million as 1e+06. */}}
{{- define "epp.flagValue" -}}
{{- if kindIs "float64" . }}{{ ternary (int64 . | toString) (toString .) (eq (floor .) .) }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "epp.pickers" -}}
{{- if .Values.autoscaling.enabled }}{{ int .Values.autoscaling.minReplicas }}{{ else }}{{ int .Values.replicas }}{{ end }}
{{- end }}

{{/* The Secret with what peers prove themselves by; empty: they need none. */}}
{{- define "epp.peerSecret" -}}
{{- if and .Values.peers.enabled (not (and .Values.tlsSecret (hasKey .Values.flags "client-ca-file") (not .Values.peers.tokenSecret))) -}}
{{ .Values.peers.tokenSecret | default (printf "%s-peers" (include "epp.name" .)) }}
{{- end -}}
{{- end }}
