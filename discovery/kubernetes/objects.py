"""Decodes Services and pods, and says why a pod is not ready. Unknown fields are skipped. Pure."""

from typing import Final

import msgspec


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class ServicePort(msgspec.Struct, frozen=True):
    name: str | None = None


class ServiceSpec(msgspec.Struct, frozen=True):
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None


class Service(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()


class ContainerStateWaiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True):
    waiting: ContainerStateWaiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    name: str = ""
    state: ContainerState | None = None


class PodCondition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename={"address": "podIP", "containers": "containerStatuses"}):
    phase: str = ""
    address: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    containers: tuple[ContainerStatus, ...] | None = None


class Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    status: PodStatus = PodStatus()


class ServiceList(msgspec.Struct, frozen=True):
    items: tuple[Service, ...] | None = None


class PodList(msgspec.Struct, frozen=True):
    items: tuple[Pod, ...] | None = None


_PENDING: Final = "Pending"


def pod_problem(pod: Pod) -> str | None:
    """Why the pod is not ready, None if it is. The first cause counts: a container that waits also fails its probe."""
    if pod.metadata.deletion_timestamp is not None:
        return "its pod is terminating"
    waiting = next((c for c in pod.status.containers or () if c.state and c.state.waiting), None)
    if waiting is not None and waiting.state is not None and waiting.state.waiting is not None:
        state = waiting.state.waiting
        message = f": {state.message}" if state.message else ""
        return f"its container {waiting.name} waits: {state.reason}{message}"
    failed = {c.type: c for c in pod.status.conditions or () if c.status == "False"}
    if pod.status.phase == _PENDING and "PodScheduled" in failed:
        return f"its pod is not scheduled: {failed['PodScheduled'].message}"
    if pod.status.phase != "Running":
        return f"its pod is {pod.status.phase or 'in no phase'}"
    if not pod.status.address:
        return "its pod has no address yet"
    if "Ready" in failed:
        return f"its pod is not ready: its readiness probe (GET /health) fails{_message(failed['Ready'])}"
    return None


def _message(condition: PodCondition) -> str:
    return f" ({condition.message})" if condition.message else ""
