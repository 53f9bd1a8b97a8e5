"""Pods, Services and hand-made slices, as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.kubernetes.fake.rv_log import Object

LABELS = {"nvidia.com/dynamo-namespace": "dynamo", "nvidia.com/dynamo-component": "decode"}
SERVICE = "dynamo-decode-service"


def pod(
    name: str,
    *ips: str,
    ready: bool = True,
    terminating: bool = False,
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
    node: str = "node-a",
    phase: str = "Running",
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    restarts: int = 0,
) -> Object:
    """A pod as kubelet reports it; `ips` one per family, `ports` of its container by name. Each of its container's
    `restarts` gives that another id.
    """
    meta: Object = {
        "name": name,
        "namespace": namespace,
        "labels": dict(LABELS if labels is None else labels),
    }
    if uid is not None:
        meta["uid"] = uid
    if annotations:
        meta["annotations"] = dict(annotations)
    if terminating:
        meta["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    named = {"http": 8080} if ports is None else ports
    container = {
        "name": "worker",
        "image": "worker",
        "ports": [{"name": n, "containerPort": p} for n, p in named.items()],
    }
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status: Object = {"phase": phase, "conditions": [condition], "podIPs": [{"ip": ip} for ip in ips]}
    if ips:
        status["podIP"] = ips[0]
    if restarts:
        one = {
            "name": "worker",
            "image": "worker",
            "imageID": "",
            "ready": ready,
            "restartCount": restarts,
            "containerID": f"containerd://{restarts:012x}{0:052x}",
        }
        status["containerStatuses"] = [one]
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [container]}, "status": status}


def service(
    name: str = SERVICE,
    *,
    selector: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    ports: Mapping[str, int | str] | None = None,
    families: Sequence[str] = ("IPv4",),
    publish_not_ready: bool = False,
    namespace: str = "default",
) -> Object:
    """A Service; `ports`: name → targetPort. The default is Dynamo's."""
    named = {"http": 8080} if ports is None else ports
    spec: Object = {
        "selector": dict(LABELS if selector is None else selector),
        "ports": [{"name": n, "port": 8080, "targetPort": p, "protocol": "TCP"} for n, p in named.items()],
        "ipFamilies": list(families),
        "ipFamilyPolicy": "RequireDualStack" if len(families) > 1 else "SingleStack",
        "publishNotReadyAddresses": publish_not_ready,
    }
    return {"metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})}, "spec": spec}


def inference_pool(
    name: str, *ports: int, labels: Mapping[str, str] | None = None, namespace: str = "default"
) -> Object:
    """An InferencePool of `inference.networking.k8s.io/v1`."""
    spec = {
        "selector": {"matchLabels": dict(LABELS if labels is None else labels)},
        "targetPorts": [{"number": port} for port in ports],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def old_inference_pool(name: str, port: int, labels: Mapping[str, str] | None = None) -> Object:
    """One of `inference.networking.x-k8s.io/v1alpha2`."""
    selector = dict(LABELS if labels is None else labels)
    spec = {"selector": selector, "targetPortNumber": port, "extensionRef": {"name": "picker"}}
    return {"metadata": {"name": name}, "spec": spec}


def node(name: str, zone: str) -> Object:
    return {"metadata": {"name": name, "namespace": "", "labels": {"topology.kubernetes.io/zone": zone}}}


def endpoint(
    address: str,
    name: str | None = None,
    uid: str | None = None,
    *,
    ready: bool | None = None,
    serving: bool | None = None,
    terminating: bool | None = None,
    **more: Any,
) -> Object:
    """One endpoint; a condition of None is absent. `name` None: no targetRef."""
    given = {"ready": ready, "serving": serving, "terminating": terminating}
    made: Object = {
        "addresses": [address],
        "conditions": {key: value for key, value in given.items() if value is not None},
    }
    if name is not None:
        made["targetRef"] = {"kind": "Pod", "namespace": "default", "name": name, "uid": uid or f"uid-{name}"}
    return made | more


def endpoint_slice(
    name: str,
    *endpoints: Object,
    service: str = SERVICE,
    kind: str = "IPv4",
    ports: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
) -> Object:
    """A slice; without endpoints it is the controller's placeholder, whose lists are JSON null."""
    meta: Object = {
        "name": name,
        "namespace": namespace,
        "labels": {"kubernetes.io/service-name": service, **(labels or {})},
    }
    if annotations:
        meta["annotations"] = dict(annotations)
    named = {"http": 8080} if ports is None else ports
    listed = [{"name": n, "port": p, "protocol": "TCP"} for n, p in named.items()]
    return {
        "metadata": meta,
        "addressType": kind,
        "endpoints": list(endpoints) or None,
        "ports": listed if endpoints else None,
    }
