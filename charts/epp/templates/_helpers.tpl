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

{{/* What makes a pod an instance (seed 002): the selector of the Service that charts/worker makes. */}}
{{- define "epp.instanceLabels" -}}
nvidia.com/dynamo-namespace: {{ required "namespace is required: of the workers, as charts/worker was told" .Values.namespace | quote }}
nvidia.com/dynamo-component: {{ required "component is required: of the workers, as charts/worker was told" .Values.component | quote }}
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
