{{- define "worker.name" -}}
{{ .Release.Name | replace "." "-" }}
{{- end }}

{{/* What makes these pods this release's, never changed: a Deployment's selector cannot be. */}}
{{- define "worker.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "worker.labels" -}}
{{ include "worker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What makes a pod an instance (seed 002); charts/epp puts the same into an InferencePool. */}}
{{- define "worker.instanceLabels" -}}
nvidia.com/dynamo-namespace: {{ required "namespace is required: of the instances, as in register_instance" .Values.namespace | quote }}
nvidia.com/dynamo-component: {{ required "component is required: of the instances, as in register_instance" .Values.component | quote }}
{{- end }}

{{- define "worker.serviceName" -}}
{{ .Values.service.template | replace "{namespace}" .Values.namespace | replace "{component}" .Values.component }}
{{- end }}

{{- define "worker.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "worker.name" .) }}
{{- else -}}
{{ required "serviceAccount.name is required where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{/* The URL by which the registry, and a worker that watches others, finds everything. */}}
{{- define "worker.discovery" -}}
{{- $query := list -}}
{{- if ne .Values.service.template "dynamo-{component}-service" -}}
{{- $query = append $query (printf "service=%s" (urlquery .Values.service.template)) -}}
{{- end -}}
{{- if not .Values.registry.assertService -}}
{{- $query = append $query "assert_service=false" -}}
{{- end -}}
kubernetes://{{ with $query }}?{{ join "&" . }}{{ end }}
{{- end }}

{{- define "worker.needsApi" -}}
{{- if or .Values.registry.assertService .Values.watchesOthers .Values.pdSidecar.enabled }}true{{ end }}
{{- end }}

{{/* Beside a model server the token is mounted by hand: automounting would give it to every container. */}}
{{- define "worker.ownToken" -}}
{{- if and (or .Values.sidecar.enabled .Values.pdSidecar.enabled) (include "worker.needsApi" .) }}true{{ end }}
{{- end }}

{{- define "worker.tokenMount" -}}
- {name: api-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* Whether the worker's own container needs it then. */}}
{{- define "worker.workerAsks" -}}
{{- if and (include "worker.ownToken" .) (or .Values.watchesOthers (and .Values.registry.assertService (not .Values.sidecar.enabled))) }}true{{ end }}
{{- end }}

{{/* As kubelet's admission writes it. */}}
{{- define "worker.tokenVolume" -}}
- name: api-token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* What the registry needs to know of its pod, wherever it runs. */}}
{{- define "worker.registryEnv" -}}
- name: ADSUM_DISCOVERY
  value: {{ include "worker.discovery" . | quote }}
- name: POD_IP # the one thing that the files in /etc/podinfo cannot say
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}

{{- define "worker.podinfoMount" -}}
- {name: podinfo, mountPath: /etc/podinfo, readOnly: true}
{{- end }}

{{/* The container that serves the wire contract. */}}
{{- define "worker.contractProbes" -}}
startupProbe:
  httpGet: {path: /live, port: http}
  periodSeconds: {{ .Values.probes.periodSeconds }}
  timeoutSeconds: {{ .Values.probes.timeoutSeconds }}
  failureThreshold: {{ max 1 (div .Values.probes.startupSeconds .Values.probes.periodSeconds) }}
readinessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: {{ .Values.probes.periodSeconds }}
  timeoutSeconds: {{ .Values.probes.timeoutSeconds }}
  failureThreshold: {{ .Values.probes.failureThreshold }}
livenessProbe:
  httpGet: {path: /live, port: http}
  periodSeconds: 10
  timeoutSeconds: {{ .Values.probes.timeoutSeconds }}
  failureThreshold: 6
{{- end }}
