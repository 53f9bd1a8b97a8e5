"""The pool that the batch shares with interactive users: larger and slower than the demo's, as real ones are."""

from typing import Final

SEQUENCES: Final = 128
"""Requests that one worker computes at once."""

SIMULATOR: Final = (
    *("--max-num-seqs", str(SEQUENCES)),
    *("--num-gpu-blocks", "65536"),
    *("--step-seconds", "0.03"),
)
"""A request takes a few seconds, longer than it takes to be seen in the metrics."""

_PROFILE = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: active-request-scorer
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: active-request-scorer, weight: 4}
  - {pluginRef: prefix-cache-scorer, weight: 1}
  - {pluginRef: max-score-picker}
"""
PICKS: Final = ("--config-text", _PROFILE)
"""By what the picker itself has in flight: when hundreds come within a moment, no metrics page is fresh."""
