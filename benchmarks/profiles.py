"""Picker configurations that several benchmarks use."""

from typing import Final

GO_DEFAULT: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""
"""The default profile of the Go picker."""
_GO_STICKY: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-load-scorer
- type: inflight-load-producer
- type: approx-prefix-cache-producer
  parameters: {maxPrefixTokensToMatch: KV_TOKENS}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.80, maxTTFTPenaltyMs: 18000, peakPrefillThroughput: TOKENS_PER_SECOND}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
"""
GO_PRECISE: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters: {modelName: m, vllm: {url: RENDER}}
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSize: 16}
    kvEventsConfig: {zmqEndpoint: EVENTS}
    speculativeIndexing: true
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: kv-cache-utilization-scorer
- type: queue-scorer
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1}
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: max-score-picker}
"""
"""The weights of its deploy/config/epp-precise-prefix-cache-config.yaml; workers publish to the picker. With the picks of the
last seconds, as its own benchmark has it (test/perf/config/router-configs/precise-prefix.yaml)."""
_FILE: Final = """\
plugins:
- {type: file-discovery, parameters: {path: ENDPOINTS, watchFile: WATCHED}}
"""
_DISCOVERY: Final = "dataLayer: {discovery: {pluginRef: file-discovery}}\n"


def go_sticky(*, kv_tokens: int, tokens_per_second: int) -> str:
    """The plugins of llm-d's guide optimized-baseline, with the values that it says must match the model server."""
    return _GO_STICKY.replace("KV_TOKENS", str(kv_tokens)).replace(
        "TOKENS_PER_SECOND", str(tokens_per_second)
    )


def over_endpoints_file(config: str, *, watched: bool = False) -> str:
    """Reads the endpoints from the file ENDPOINTS: the only source that the Go picker has without Kubernetes."""
    return config.replace("plugins:\n", _FILE.replace("WATCHED", str(watched).lower()), 1) + _DISCOVERY
