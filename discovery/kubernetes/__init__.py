"""Sources: instances are the Pods in the EndpointSlices of one Service, or the Pods that a label selector or an InferencePool
selects; both are watched at a Kubernetes API server.

Only `kubeconfig` imports Kubernetes' own client.
"""

from discovery.kubernetes.cluster import load_cluster
from discovery.kubernetes.credentials import Cluster
from discovery.kubernetes.inference_pool import PodTargets, PoolReference
from discovery.kubernetes.opening import open_kubernetes
from discovery.kubernetes.pods_source import PodsSource
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
