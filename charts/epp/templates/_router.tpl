{{/*
Takes the values of the Go picker's chart (llm-d-router), `router.*`, over to ours. Every template begins with it; a second
time changes nothing. An image of ours counts before router.epp.image: theirs is the Go picker.
*/}}
{{- define "epp.takeRouter" -}}
{{- include "epp.refuse" . }}
{{- $v := .Values }}
{{- with .Values.router }}
{{- $epp := .epp | default dict }}
{{- $flags := deepCopy ($epp.flags | default dict) }}
{{- range $theirs, $ours := dict "replicas" "replicas" "env" "env" "resources" "resources" "affinity" "affinity" "tolerations" "tolerations" "podAnnotations" "annotations" "volumes" "volumes" "volumeMounts" "volumeMounts" "extraContainerPorts" "extraContainerPorts" }}
{{- if hasKey $epp $theirs }}{{- $_ := set $v $ours (index $epp $theirs) }}{{- end }}
{{- end }}
{{- range $name := list "extraServicePorts" "inferenceObjectives" }}
{{- if hasKey $v.router $name }}{{- $_ := set $v $name (index $v.router $name) }}{{- end }}
{{- end }}
{{- include "epp.takeImage" (dict "values" $v "image" ($epp.image | default dict)) }}
{{- if $epp.extProcPort }}{{- $_ := set $v.ports "grpc" (int $epp.extProcPort) }}{{- end }}
{{- if $epp.grpcHealthPort }}{{- $_ := set $v.ports "health" (int $epp.grpcHealthPort) }}{{- end }}
{{- if .metricsPort }}{{- $_ := set $v.ports "metrics" (int .metricsPort) }}{{- end }}
{{- range $flag, $port := dict "grpc-port" "grpc" "grpc-health-port" "health" "metrics-port" "metrics" }}
{{- if hasKey $flags $flag }}{{- $_ := set $v.ports $port (int (index $flags $flag)) }}{{- $_ := unset $flags $flag }}{{- end }}
{{- end }}
{{- if hasKey $flags "secure-serving" }}
{{- $_ := set $v "secureServing" (eq (toString (index $flags "secure-serving")) "true") }}{{- $_ := unset $flags "secure-serving" }}
{{- end }}
{{- if hasKey $flags "drain-timeout" }}
{{- $_ := set $v.drain "timeoutSeconds" (int (trimSuffix "s" (index $flags "drain-timeout"))) }}{{- $_ := unset $flags "drain-timeout" }}
{{- end }}
{{- with .tracing }}{{- $_ := mergeOverwrite $v.tracing . }}{{- end }}
{{- $_ := mergeOverwrite $v.modelServers (.modelServers | default dict) }}
{{- $pool := .inferencePool | default dict }}
{{- $_ := set $v.inferencePool "create" (dig "create" true $pool) }}
{{- $_ := set $v.inferencePool "failureMode" (dig "failureMode" "FailOpen" $pool | replace "Closed" "Close") }}
{{- if not $v.workers.source }}{{- $_ := set $v.workers "source" (ternary "pool" "pods" $v.inferencePool.create) }}{{- end }}
{{- $prometheus := dig "monitoring" "prometheus" dict . }}
{{- $_ := set $v.metricsAuth "enabled" (dig "auth" "enabled" true $prometheus) }}
{{- if hasKey $flags "metrics-endpoint-auth" }}
{{- $_ := set $v.metricsAuth "enabled" (eq (toString (index $flags "metrics-endpoint-auth")) "true") }}{{- $_ := unset $flags "metrics-endpoint-auth" }}
{{- end }}
{{- $_ := set $v.metricsAuth "clusterRole" (dig "enabled" false $prometheus) }}
{{- if dig "enabled" false $prometheus }}
{{- $_ := set $v "serviceMonitor" (dict "enabled" true "interval" (dig "monitoring" "interval" "10s" .) "labels" (dig "extraLabels" dict $prometheus)) }}
{{- $_ := set $v.metricsAuth "secretName" (dig "auth" "secretName" "inference-gateway-sa-metrics-reader-secret" $prometheus) }}
{{- end }}
{{- $_ := set $v "flags" (mergeOverwrite (dict) $v.flags $flags) }}
{{- end }}
{{- end }}

{{- define "epp.takeImage" -}}
{{- with .image.pullPolicy }}{{- if not $.values.imagePullPolicy }}{{- $_ := set $.values "imagePullPolicy" . }}{{- end }}{{- end }}
{{- if and .image.repository (not .values.image) }}
{{- if or (contains "llm-d-router-endpoint-picker" .image.repository) (contains "llm-d-inference-scheduler" .image.repository) }}
{{- fail (printf "router.epp.image.repository=%s is the Go picker's image; say --set image=registry.example/adsum:0.1.0" .image.repository) }}
{{- end }}
{{- $tag := required "router.epp.image.tag is required" .image.tag }}
{{- $registry := required "router.epp.image.registry is required" .image.registry }}
{{- $_ := set .values "image" (printf "%s/%s:%s" $registry .image.repository (toString $tag)) }}
{{- end }}
{{- end }}

{{/* Values of the Go picker's charts that would be without effect here: each says what to use instead. */}}
{{- define "epp.refuse" -}}
{{- if hasKey .Values "inferenceExtension" }}
{{- fail "inferenceExtension: values of the older inferencepool chart; its successor says router.epp, router.modelServers and httpRoute for them (docs/migration.md)" }}
{{- end }}
{{- if eq .Values.provider.name "gke" }}
{{- fail "provider.name=gke: this chart makes no HealthCheckPolicy and no GCPBackendPolicy; apply them yourself and leave provider.name at none" }}
{{- end }}
{{- with .Values.router }}
{{- if dig "proxy" "enabled" false . }}
{{- fail "router.proxy.enabled: this chart runs no proxy; install charts/gateway beside it and remove router.proxy (docs/gateways.md)" }}
{{- end }}
{{- if dig "tokenizer" "enabled" false . }}
{{- fail "router.tokenizer.enabled: there is no tokenizer sidecar here; tokens are estimated from bytes; remove router.tokenizer" }}
{{- end }}
{{- if dig "latencyPredictor" "enabled" false . }}
{{- fail "router.latencyPredictor.enabled: latencies are not predicted here; remove it, and the plugins that need it from router.epp.pluginsCustomConfig" }}
{{- end }}
{{- if eq (dig "monitoring" "provider" "name" "" .) "gmp" }}
{{- fail "router.monitoring.provider.name=gmp: this chart makes no PodMonitoring; apply one yourself, or use podMonitor or serviceMonitor of the Prometheus operator" }}
{{- end }}
{{- end }}
{{- end }}
