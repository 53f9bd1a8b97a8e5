"""Instances are Pods that are watched at a Kubernetes API server: those in EndpointSlices, or those that are selected.

`opening` makes a source of `slices/` or `pods/`; both stand on `reflector/`, which stands on `api/`.
"""

from discovery.kubernetes.api.credentials import Cluster, load_cluster
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.api.transport import ApiTransport, ClusterTransport, Response, TransportError
from discovery.kubernetes.opening import open_kubernetes
from discovery.kubernetes.pods.selection import PodTargets, PoolReference
from discovery.kubernetes.pods.source import PodsSource
from discovery.kubernetes.slices.source import KubernetesSource, LabelSelection, Selection, ServiceSelection

__all__ = [
    "ApiTransport",
    "Cluster",
    "ClusterTransport",
    "KubernetesSource",
    "LabelSelection",
    "PodTargets",
    "PodsSource",
    "PoolReference",
    "Response",
    "Selection",
    "ServiceSelection",
    "Timings",
    "TransportError",
    "load_cluster",
    "open_kubernetes",
]
