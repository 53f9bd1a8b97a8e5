"""Decides whether one of the listed Services makes this pod visible, and says which manifest lines are missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from discovery.errors import RegistrationError
from discovery.kubernetes.api.objects import Service
from discovery.kubernetes.api.refusal import PolicyRule
from discovery.source import ComponentKey
from registry.kubernetes.pod import OwnPod, labels_of

LIST_SERVICES: Final = PolicyRule("", "services", ("list",))


@dataclass(frozen=True, slots=True)
class Visibility:
    """Discovery finds a component by these: a Service named `service` (None: one with Dynamo's labels), whose port
    `port_name` targets `port`, where the contract is served.
    """

    key: ComponentKey
    service: str | None
    port_name: str
    port: int

    def check(self, pod: OwnPod, services: Sequence[Service]) -> None:
        """Raises RegistrationError unless one of `services`, all those of the pod's namespace, makes the pod visible."""
        selecting = [service for service in services if service.selects(pod.labels)]
        visible = [service for service in selecting if self._is_watched(service)]
        if not visible:
            raise RegistrationError(f"{self._why_invisible(pod, services, selecting)}\n{self._manifest(pod)}")
        problems = [self._port_problem(service) for service in visible]
        if all(problems):
            raise RegistrationError(f"{problems[0]} The Service's spec needs:\n{self._ports(2)}")

    def _is_watched(self, service: Service) -> bool:
        if self.service is not None:
            return service.metadata.name == self.service
        carried = service.metadata.labels or {}
        return all(carried.get(name) == value for name, value in labels_of(self.key).items())

    def _why_invisible(self, pod: OwnPod, services: Sequence[Service], selecting: Sequence[Service]) -> str:
        """The error's first line, about the Service that comes closest."""
        who = f"pod {pod.name} of {self.key} is invisible: "
        if selecting:
            names = ", ".join(sorted(service.metadata.name for service in selecting))
            if self.service is None:
                return f"{who}Service {names} selects it, but does not carry the labels that discovery looks for."
            return (
                f"{who}Service {names} selects it, but discovery watches {self.service!r} (the URL's `service=` "
                "is the template of that name, and must be the same for registry and discovery)."
            )
        named = next((service for service in services if service.metadata.name == self.service), None)
        if named is None:
            return f"{who}no Service in namespace {pod.namespace!r} selects it."
        return f"{who}Service {self.service} exists, but {_selector_mismatch(named, pod)}."

    def _port_problem(self, service: Service) -> str | None:
        name = service.metadata.name
        ports = {port.name or "": port for port in service.spec.ports or ()}
        if self.port_name not in ports:
            found = ", ".join(repr(port) for port in ports) or "none"
            return (
                f"Service {name} has no port named {self.port_name!r} (it has {found}), so discovery cannot fetch the "
                "metadata (the URL's `port=` sets that name)."
            )
        port = ports[self.port_name]
        target = port.target_port or port.port
        if isinstance(target, int) and target != self.port:
            return (
                f"Service {name} has targetPort {target} for its port {self.port_name!r}, but the worker's contract is "
                f"served on {self.port}."
            )
        return None

    def _manifest(self, pod: OwnPod) -> str:
        labels = labels_of(self.key)
        pairs = "\n".join(f"    {name}: {value}" for name, value in labels.items())
        carried = "" if self.service is not None else f"\n  labels:\n{pairs}"
        name = self.service or f"dynamo-{self.key.component}-service"
        return (
            "Create this Service (or pass `?assert_service=false`, which skips this check):\n"
            f"apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: {pod.namespace}{carried}\n"
            f"spec:\n  selector:\n{pairs}\n{self._ports(2)}"
        )

    def _ports(self, indent: int) -> str:
        start = " " * indent
        return f"{start}ports:\n{start}  - {{name: {self.port_name}, port: {self.port}, targetPort: {self.port}}}"


def _selector_mismatch(service: Service, pod: OwnPod) -> str:
    selector = service.spec.selector or {}
    if service.spec.type == "ExternalName":
        return "it is of type ExternalName, which selects nothing"
    if not selector:
        return "it has no selector, so it selects nothing"
    wrong = [
        f"{name}={value} (the pod has {pod.labels.get(name) or 'none'})"
        for name, value in selector.items()
        if pod.labels.get(name) != value
    ]
    return f"it selects {', '.join(wrong)}"
