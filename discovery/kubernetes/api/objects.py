"""Decodes Services, Pods and Nodes, and says why a pod is not ready. Unknown fields are skipped. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

_ACTIVE_PORTS: Final = {
    "active_ports": "llm-d.ai/active-ports",
    "old_active_ports": "inference.networking.k8s.io/active-ports",
}


class Annotations(msgspec.Struct, frozen=True, gc=False, rename=_ACTIVE_PORTS):
    """The annotations that the Go picker reads: the ports of a Pod that serve now, separated by commas."""

    active_ports: str | None = None
    old_active_ports: str | None = None


class ObjectMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: Annotations | None = None
    deletion_timestamp: str | None = None


class ServicePort(msgspec.Struct, frozen=True, rename="camel"):
    """`target_port` None: the same as `port`; a string names a port of the container."""

    name: str | None = None
    port: int = 0
    target_port: int | str | None = None


class ServiceSpec(msgspec.Struct, frozen=True):
    type: str | None = None
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None


class Service(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Like the EndpointSlice controller: every pair of the selector must match; no selector selects nothing."""
        selector = self.spec.selector or {}
        if self.spec.type == "ExternalName" or not selector:
            return False
        return all(labels.get(name) == value for name, value in selector.items())


class ContainerStateWaiting(msgspec.Struct, frozen=True, gc=False):
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    waiting: ContainerStateWaiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True, gc=False, rename={"id": "containerID"}):
    """`id`: `runtime://` and the id of the container that runs, or ran last; another one after each restart."""

    name: str = ""
    id: str = ""
    state: ContainerState | None = None


class PodCondition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    message: str = ""


class PodStatus(
    msgspec.Struct, frozen=True, gc=False, rename={"address": "podIP", "containers": "containerStatuses"}
):
    phase: str = ""
    address: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    containers: tuple[ContainerStatus, ...] | None = None


class ContainerPort(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    container_port: int = 0


class Container(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    ports: tuple[ContainerPort, ...] | None = None


class PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: tuple[Container, ...] | None = None


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Node(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


_PENDING: Final = "Pending"


def pod_problem(pod: Pod) -> str | None:
    """Why the pod of a registered worker is not ready, None if it is."""
    if (cause := start_problem(pod)) is not None:
        return cause
    if (ready := _condition(pod, "Ready")) is not None and ready.status == "False":
        return f"its pod is not ready: its readiness probe (GET /health) fails{_message(ready)}"
    return None


def start_problem(pod: Pod) -> str | None:
    """Why the pod cannot be ready. The first cause counts: a container that waits also fails its probe."""
    if pod.metadata.deletion_timestamp is not None:
        return "its pod is terminating"
    waiting = next((c for c in pod.status.containers or () if c.state and c.state.waiting), None)
    if waiting is not None and waiting.state is not None and waiting.state.waiting is not None:
        state = waiting.state.waiting
        message = f": {state.message}" if state.message else ""
        return f"its container {waiting.name} waits: {state.reason}{message}"
    scheduled = _condition(pod, "PodScheduled")
    if pod.status.phase == _PENDING and scheduled is not None and scheduled.status == "False":
        return f"its pod is not scheduled: {scheduled.message}"
    if pod.status.phase != "Running":
        return f"its pod is {pod.status.phase or 'in no phase'}"
    if not pod.status.address:
        return "its pod has no address yet"
    return None


def is_ready(pod: Pod) -> bool:
    """Whether the pod should get requests: its condition Ready is true, and nobody has deleted it."""
    ready = _condition(pod, "Ready")
    return pod.metadata.deletion_timestamp is None and ready is not None and ready.status == "True"


def not_ready_reason(pod: Pod) -> str:
    """Why `is_ready` is false."""
    ready = _condition(pod, "Ready")
    status = "missing" if ready is None else ready.status
    return start_problem(pod) or f"its pod's condition Ready is {status}{_message(ready)}"


def _condition(pod: Pod, kind: str) -> PodCondition | None:
    return next((c for c in pod.status.conditions or () if c.type == kind), None)


def _message(condition: PodCondition | None) -> str:
    return f" ({condition.message})" if condition is not None and condition.message else ""
