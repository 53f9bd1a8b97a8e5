"""An endpoint picker for Envoy: picks the worker for each request. `discovery` names the workers.

`server` is the composition root; ARCHITECTURE.md describes the folders.
"""

from adsum.imports import check_not_shadowed

check_not_shadowed("discovery")
