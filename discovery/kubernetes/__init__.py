"""Source: instances are the Pods in the EndpointSlices of one Service, watched at a Kubernetes API server.

Only `kubeconfig` imports Kubernetes' own client.
"""

from discovery.kubernetes.cluster import load_cluster
from discovery.kubernetes.credentials import Cluster
from discovery.kubernetes.opening import open_kubernetes
from discovery.kubernetes.selection import LabelSelection, Selection, ServiceSelection
from discovery.kubernetes.source import KubernetesSource
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport, ClusterTransport, Response, TransportError

__all__ = [
    "ApiTransport",
    "Cluster",
    "ClusterTransport",
    "KubernetesSource",
    "LabelSelection",
    "Response",
    "Selection",
    "ServiceSelection",
    "Timings",
    "TransportError",
    "load_cluster",
    "open_kubernetes",
]
