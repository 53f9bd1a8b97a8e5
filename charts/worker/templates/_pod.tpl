{{/* The pod's template, the same for a Deployment and a StatefulSet. */}}
{{- define "worker.pod" -}}
metadata:
  labels:
    {{- with .Values.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .Values.engine }}
    llm-d.ai/engine-type: {{ . | quote }}
    {{- end }}
    {{- with .Values.role }}
    llm-d.ai/role: {{ . | quote }}
    {{- end }}
    {{- include "worker.labels" . | nindent 4 }}
    {{- include "worker.instanceLabels" . | nindent 4 }}
  {{- $several := or .Values.sidecar.enabled .Values.pdSidecar.enabled }}
  {{- if or .Values.annotations $several }}
  annotations:
    {{- with .Values.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if $several }}
    kubectl.kubernetes.io/default-container: worker
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "worker.serviceAccountName" . }}
  automountServiceAccountToken: {{ and (eq (include "worker.needsApi" .) "true") (not (include "worker.ownToken" .)) }}
  # preStop, drain, and a little to end in
  terminationGracePeriodSeconds: {{ add .Values.drain.preStopSeconds .Values.drain.timeoutSeconds 10 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  containers:
    {{- include "worker.container" . | nindent 4 }}
    {{- if .Values.sidecar.enabled }}
    {{- include "worker.sidecar" . | nindent 4 }}
    {{- end }}
    {{- if .Values.pdSidecar.enabled }}
    {{- include "worker.pdSidecar" . | nindent 4 }}
    {{- end }}
  volumes:
    - name: podinfo
      downwardAPI:
        items:
          - {path: name, fieldRef: {fieldPath: metadata.name}}
          - {path: uid, fieldRef: {fieldPath: metadata.uid}}
          - {path: namespace, fieldRef: {fieldPath: metadata.namespace}}
          - {path: labels, fieldRef: {fieldPath: metadata.labels}}
    {{- if include "worker.ownToken" . }}
    {{- include "worker.tokenVolume" . | nindent 4 }}
    {{- end }}
    {{- if and .Values.sidecar.enabled .Values.sidecar.metadata }}
    - name: metadata
      configMap: {name: {{ include "worker.name" . }}}
    {{- end }}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "worker.container" -}}
- name: worker
  image: {{ required "image is required: the worker's, as in --set image=registry.example/worker:1.0" .Values.image | quote }}
  {{- with .Values.imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  {{- with .Values.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or (not .Values.sidecar.enabled) .Values.env }}
  env:
    {{- if not .Values.sidecar.enabled }}
    {{- include "worker.registryEnv" . | nindent 4 }}
    {{- end }}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- with .Values.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- if not .Values.sidecar.enabled }}
    - {name: http, containerPort: {{ .Values.contractPort }}}
    {{- end }}
    {{- if .Values.pdSidecar.enabled }}
    - {name: model-server, containerPort: {{ .Values.pdSidecar.modelServerPort }}}
    {{- else if or .Values.sidecar.enabled (ne (int .Values.servingPort) (int .Values.contractPort)) }}
    - {name: serving, containerPort: {{ .Values.servingPort }}}
    {{- end }}
  {{- if not .Values.sidecar.enabled }}
  {{- include "worker.contractProbes" . | nindent 2 }}
  {{- else if .Values.probes.serverLiveness }}
  livenessProbe:
    {{- toYaml .Values.probes.serverLiveness | nindent 4 }}
  {{- end }}
  {{- if gt (int .Values.drain.preStopSeconds) 0 }}
  lifecycle:
    preStop:
      sleep: {seconds: {{ .Values.drain.preStopSeconds }}}
  {{- end }}
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $watches := include "worker.workerAsks" . }}
  {{- if or (not .Values.sidecar.enabled) $watches .Values.volumeMounts }}
  volumeMounts:
    {{- if not .Values.sidecar.enabled }}
    {{- include "worker.podinfoMount" . | nindent 4 }}
    {{- end }}
    {{- if $watches }}
    {{- include "worker.tokenMount" . | nindent 4 }}
    {{- end }}
    {{- with .Values.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end }}

{{- define "worker.pdSidecar" -}}
{{- $ports := list (int .Values.servingPort) (int .Values.contractPort) (int .Values.pdSidecar.modelServerPort) }}
{{- if ne (len (uniq $ports)) 3 }}
{{- fail "servingPort, contractPort and pdSidecar.modelServerPort must differ where pdSidecar.enabled is true: each is another container's, or another server's" }}
{{- end }}
{{- if and .Values.role (not (contains "decode" .Values.role)) (ne .Values.role "both") }}
{{- fail (printf "pdSidecar is for workers that decode, not for role=%s" .Values.role) }}
{{- end }}
- name: pd-sidecar
  image: {{ required "pdSidecar.image is required where pdSidecar.enabled is true: adsum's own image" .Values.pdSidecar.image | quote }}
  {{- with .Values.imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  command: [python, -m, registry]
  args:
    - pd-sidecar
    - --port={{ .Values.servingPort }}
    - --model-server-port={{ .Values.pdSidecar.modelServerPort }}
    - --kv-connector={{ .Values.pdSidecar.connector }}
    - --prefill-component={{ .Values.namespace }}/{{ .Values.component }}
    - --drain-timeout={{ .Values.drain.timeoutSeconds }}s
    {{- with .Values.pdSidecar.args }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    {{- include "worker.registryEnv" . | nindent 4 }}
  ports:
    - {name: serving, containerPort: {{ .Values.servingPort }}}
  {{- if gt (int .Values.drain.preStopSeconds) 0 }}
  lifecycle:
    preStop:
      sleep: {seconds: {{ .Values.drain.preStopSeconds }}}
  {{- end }}
  {{- with .Values.pdSidecar.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    {{- include "worker.podinfoMount" . | nindent 4 }}
    {{- include "worker.tokenMount" . | nindent 4 }}
{{- end }}

{{- define "worker.sidecar" -}}
{{- if eq (int .Values.servingPort) (int .Values.contractPort) }}
{{- fail "servingPort and contractPort must differ where sidecar.enabled is true: two containers serve in one pod" }}
{{- end }}
- name: registry
  image: {{ required "sidecar.image is required where sidecar.enabled is true: adsum's own image" .Values.sidecar.image | quote }}
  {{- with .Values.imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  command: [python, -m, registry]
  args:
    - --namespace={{ .Values.namespace }}
    - --component={{ .Values.component }}
    - --server=http://127.0.0.1:{{ .Values.servingPort }}
    - --port={{ .Values.contractPort }}
    - --health-path={{ .Values.sidecar.healthPath }}
    - --models-path={{ .Values.sidecar.modelsPath }}
    - --interval={{ .Values.sidecar.interval }}
    - --drain-timeout={{ add .Values.drain.preStopSeconds .Values.drain.timeoutSeconds }}s
    {{- with .Values.engine }}
    - --engine={{ . }}
    {{- end }}
    {{- if .Values.sidecar.metadata }}
    - --metadata-file=/etc/adsum/metadata.json
    {{- end }}
  env:
    {{- include "worker.registryEnv" . | nindent 4 }}
  ports:
    - {name: http, containerPort: {{ .Values.contractPort }}}
  {{- include "worker.contractProbes" . | nindent 2 }}
  {{- with .Values.sidecar.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    {{- include "worker.podinfoMount" . | nindent 4 }}
    {{- if include "worker.ownToken" . }}
    {{- include "worker.tokenMount" . | nindent 4 }}
    {{- end }}
    {{- if .Values.sidecar.metadata }}
    - {name: metadata, mountPath: /etc/adsum, readOnly: true}
    {{- end }}
{{- end }}
