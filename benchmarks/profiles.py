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
_FILE: Final = """\
plugins:
- {type: file-discovery, parameters: {path: ENDPOINTS, watchFile: WATCHED}}
"""
_DISCOVERY: Final = "dataLayer: {discovery: {pluginRef: file-discovery}}\n"


def over_endpoints_file(config: str, *, watched: bool = False) -> str:
    """Reads the endpoints from the file ENDPOINTS: the only source that the Go picker has without Kubernetes."""
    return config.replace("plugins:\n", _FILE.replace("WATCHED", str(watched).lower()), 1) + _DISCOVERY
