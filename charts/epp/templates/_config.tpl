{{/* The name of the configuration in the ConfigMap. */}}
{{- define "epp.configFile" -}}
{{- $epp := dig "epp" dict (.Values.router | default dict) -}}
{{- if hasKey ($epp.pluginsCustomConfig | default dict) ($epp.pluginsConfigFile | default "") -}}
{{ $epp.pluginsConfigFile }}
{{- else -}}
config.yaml
{{- end -}}
{{- end }}

{{/* The configuration as text; empty: the picker's own default. */}}
{{- define "epp.configText" -}}
{{- $epp := dig "epp" dict (.Values.router | default dict) -}}
{{- $file := $epp.pluginsConfigFile | default "default-plugins.yaml" -}}
{{- $custom := $epp.pluginsCustomConfig | default dict -}}
{{- $payloadAgnostic := eq $file "payload-agnostic.yaml" -}}
{{- $unread := or $payloadAgnostic (eq .Values.modelServers.protocol "grpc") (eq (.Values.modelServers.type | default "") "triton") (has "passthrough-parser" ($epp.parsers | default list)) -}}
{{- if hasKey $custom $file -}}
{{ index $custom $file }}
{{- else if .Values.config -}}
{{ toYaml .Values.config }}
{{- else if not (has $file (list "default-plugins.yaml" "payload-agnostic.yaml")) -}}
{{ fail (printf "router.epp.pluginsConfigFile: there is no %q in router.epp.pluginsCustomConfig; there are %s" $file (keys $custom | sortAlpha | join ", " | default "none")) }}
{{- else if or $unread $epp.metricsDataSource -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
{{- if $payloadAgnostic }}
- type: active-request-scorer
- type: session-affinity-scorer
{{- else }}
- type: precise-prefix-cache-producer
  parameters: {optional: true}
- type: least-cost-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
{{- end }}
- type: max-score-picker
{{- if not (or $payloadAgnostic (eq (include "epp.source" .) "pool")) }}
  parameters: {maxNumOfEndpoints: 3}
{{- end }}
- type: {{ $payloadAgnostic | ternary "single-profile-handler" "least-cost-profile-handler" }}
{{- with $epp.metricsDataSource }}
- type: metrics-data-source
  parameters:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- if $unread }}
- type: passthrough-parser
requestHandler: {parsers: [{pluginRef: passthrough-parser}]}
{{- end }}
schedulingProfiles:
- name: default
  plugins:
  {{- if $payloadAgnostic }}
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: session-affinity-scorer, weight: 1}
  {{- else }}
  - {pluginRef: least-cost-scorer}
  {{- end }}
  - {pluginRef: max-score-picker}
outlierDetection: {}
slowStart: {}
{{- end -}}
{{- end }}
