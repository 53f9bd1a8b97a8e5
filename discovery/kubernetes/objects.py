"""Services and pods, as far as they explain why a pod is no instance. Unknown keys are skipped."""

from typing import Final

import msgspec


class Meta(msgspec.Struct, frozen=True, rename="camel"):
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
    metadata: Meta
    spec: ServiceSpec = ServiceSpec()


class Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True):
    waiting: Waiting | None = None


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
    metadata: Meta
    status: PodStatus = PodStatus()


class ServiceList(msgspec.Struct, frozen=True):
    items: tuple[Service, ...] | None = None


class PodList(msgspec.Struct, frozen=True):
    items: tuple[Pod, ...] | None = None


_PENDING: Final = "Pending"


def pod_trouble(pod: Pod) -> str | None:
    """Why a pod that its Service selects is not ready; None when it is. What a person would look for first."""
    if pod.metadata.deletion_timestamp is not None:
        return "its pod is terminating"
    waiting = next((c for c in pod.status.containers or () if c.state and c.state.waiting), None)
    if waiting is not None and waiting.state is not None and waiting.state.waiting is not None:
        why = waiting.state.waiting
        return f"its container {waiting.name} waits: {why.reason}{f': {why.message}' if why.message else ''}"
    failed = {c.type: c for c in pod.status.conditions or () if c.status == "False"}
    if pod.status.phase == _PENDING and "PodScheduled" in failed:
        return f"its pod is not scheduled: {failed['PodScheduled'].message}"
    if pod.status.phase != "Running":
        return f"its pod is {pod.status.phase or 'in no phase'}"
    if not pod.status.address:
        return "its pod has no address yet"
    if "Ready" in failed:
        return f"its pod is not ready: its readiness probe (GET /health) fails{_said(failed['Ready'])}"
    return None


def _said(condition: PodCondition) -> str:
    return f" ({condition.message})" if condition.message else ""
