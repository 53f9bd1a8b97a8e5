"""Keeps the workers of one component current as the endpoints of an Envoy cluster: in a file, or over gRPC (EDS).

Only this folder writes what Envoy reads of discovery; which filters and clusters Envoy has is the business of `epp.envoy`.
"""

from typing import Final

CLUSTER: Final = "workers"
"""The cluster whose endpoints they are, unless another one is named; `epp.envoy` prints it."""
