{{- define "dispatcher.name" -}}
{{ .Release.Name | replace "." "-" }}
{{- end }}

{{/* What makes these pods this release's, never changed: a Deployment's selector cannot be. */}}
{{- define "dispatcher.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dispatcher.labels" -}}
{{ include "dispatcher.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "dispatcher.config" -}}
{{- if not .Values.config -}}
{{- fail "config is required: targets, queues and their gates, as docs/dispatcher.md says" -}}
{{- end -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "broker" "${ADSUM_BROKER}" -}}
{{- $_ := set $config "http" (dict "host" "0.0.0.0" "port" 8081 "health_address" "0.0.0.0:8082") -}}
{{- $_ := set $config "drain_timeout" (printf "%ds" (int .Values.drain.timeoutSeconds)) -}}
{{ toYaml $config }}
{{- end }}
