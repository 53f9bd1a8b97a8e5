"""Source: instances are the Pods in the EndpointSlices of a component; `explain` says why a Pod is none.

The slices are those of one Service, or those with Dynamo's labels.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from string import Formatter
from typing import Final, Protocol, TypeVar

from discovery.errors import DiscoveryError
from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.kubernetes.api.objects import Pod, Service, pod_problem
from discovery.kubernetes.api.refusal import GET_SERVICES, LIST_PODS, LIST_SLICES, PolicyRule, explain_refusal
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.api.transport import ApiReadError, ApiTransport, read_api
from discovery.kubernetes.reflector.decoding import ObjectList
from discovery.kubernetes.reflector.informer import ReflectorLoop
from discovery.kubernetes.reflector.publisher import SnapshotPublisher
from discovery.kubernetes.reflector.reflector import Reflector
from discovery.kubernetes.slices.decoding import EndpointSlice, SliceDecoder
from discovery.kubernetes.slices.merge import AddressSelection, MergedSet
from discovery.source import Candidate, ComponentKey, Report, Source

T = TypeVar("T")


SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
SERVICE_TEMPLATE: Final = "dynamo-{component}-service"

_FIELDS: Final = ("namespace", "component")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


class Selection(Protocol):
    """Finds the slices of a component."""

    def selector(self, key: ComponentKey) -> str:
        """The labelSelector of list and watch. ValueError for a key that no Service can have."""
        ...

    def service(self, key: ComponentKey) -> str | None:
        """The Service's name; None when labels may select several Services."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceSelection:
    """By `kubernetes.io/service-name`, which the EndpointSlice controller sets on each slice. The default is Dynamo's name
    of a Service. It lacks the Dynamo namespace: two of them in one Kubernetes namespace need a template with
    `{namespace}`.
    """

    template: str = SERVICE_TEMPLATE

    def __post_init__(self) -> None:
        try:
            parts = list(Formatter().parse(self.template))
        except ValueError as error:
            raise ValueError(f"Service template {self.template!r}: {error}") from error
        for _, field, layout, conversion in parts:
            if field is not None and (field not in _FIELDS or layout or conversion):
                raise ValueError(
                    f"Service template {self.template!r}: {{{field}}} is unknown; "
                    "expected {namespace} and {component} only"
                )

    def selector(self, key: ComponentKey) -> str:
        return f"{SERVICE_NAME_LABEL}={self.service(key)}"

    def service(self, key: ComponentKey) -> str:
        name = self.template.format(namespace=key.namespace, component=key.component)
        if not _SERVICE_NAME.fullmatch(name):
            raise ValueError(
                f"{key}: the Service name {name!r} (from the template {self.template!r}) is not a DNS-1035 label: "
                "lower-case letters, digits and '-', starting with a letter, at most 63 characters"
            )
        return name


@dataclass(frozen=True, slots=True)
class LabelSelection:
    """By `nvidia.com/dynamo-namespace` and `-component`. The controller copies a Service's `metadata.labels` to its slices,
    and neither its selector nor the labels of pods: the Service itself needs both.
    """

    def selector(self, key: ComponentKey) -> str:
        return f"{NAMESPACE_LABEL}={key.namespace},{COMPONENT_LABEL}={key.component}"

    def service(self, key: ComponentKey) -> None:
        return None


SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
_IN_NO_SLICE: Final = (
    "it is ready and in no EndpointSlice: does the EndpointSlice controller run, does its node exist?"
)


class Diagnostics:
    """Asks the API server at each call: these are rare, and must show the cluster as it is now."""

    def __init__(self, transport: ApiTransport, namespace: str, selection: Selection, port_name: str) -> None:
        self._transport = transport
        self._namespace = namespace
        self._selection = selection
        self._port_name = port_name

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """Each pod that should be an instance and is none, and each Service that is wrong; one reason each."""
        try:
            services = await self._services(key)
        except ApiReadError as error:
            return [Candidate("services", reason=f"they cannot be read: {error}")]
        try:
            pods = await self._pods(services, key)
        except ApiReadError as error:
            unreadable = Candidate("pods", reason=f"they cannot be read: {error}")
            return [*self._service_problems(services, key, None), unreadable]
        in_slices = await self._pods_in_slices(key)
        return [*self._service_problems(services, key, pods), *_pod_problems(services, pods, in_slices)]

    async def components(self) -> list[ComponentKey]:
        """The components in the labels of slices."""
        try:
            found = await self._get(
                SLICES.format(self._namespace), {}, ObjectList[EndpointSlice], LIST_SLICES
            )
        except ApiReadError as error:
            raise DiscoveryError(f"the EndpointSlices cannot be listed: {error}") from error
        keys = set()
        for item in found.items or ():
            labels = item.metadata.labels
            if labels is not None and labels.namespace and labels.component:
                keys.add(ComponentKey(labels.namespace, labels.component))
        return sorted(keys)

    async def _pods_in_slices(self, key: ComponentKey) -> set[str] | None:
        """None when slices cannot be read; the watch reports that already."""
        params = {"labelSelector": self._selection.selector(key)}
        try:
            found = await self._get(
                SLICES.format(self._namespace), params, ObjectList[EndpointSlice], LIST_SLICES
            )
        except ApiReadError:
            return None
        endpoints = (endpoint for item in found.items or () for endpoint in item.endpoints or ())
        return {endpoint.target_ref.name for endpoint in endpoints if endpoint.target_ref is not None}

    async def _services(self, key: ComponentKey) -> list[Service]:
        path = f"/api/v1/namespaces/{self._namespace}/services"
        name = self._selection.service(key)
        if name is None:
            params = {"labelSelector": self._selection.selector(key)}
            return list((await self._get(path, params, ObjectList[Service], GET_SERVICES)).items or ())
        try:
            return [await self._get(f"{path}/{name}", {}, Service, GET_SERVICES)]
        except ApiReadError as error:
            if error.code != 404:
                raise
            return []

    async def _pods(self, services: list[Service], key: ComponentKey) -> dict[str, Pod]:
        """By name: the pods that a Service selects, and those with Dynamo's labels, which it should select."""
        selectors = [_selector_text(selector) for service in services if (selector := service.spec.selector)]
        selectors.append(LabelSelection().selector(key))
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        found = await asyncio.gather(
            *(
                self._get(path, {"labelSelector": text}, ObjectList[Pod], LIST_PODS)
                for text in dict.fromkeys(selectors)
            )
        )
        return {pod.metadata.name: pod for page in found for pod in page.items or ()}

    def _service_problems(
        self, services: list[Service], key: ComponentKey, pods: Mapping[str, Pod] | None
    ) -> Iterator[Candidate]:
        if not services:
            name = self._selection.service(key)
            wanted = f"called {name}" if name else f"with the labels {self._selection.selector(key)}"
            yield Candidate(
                name or "services", reason=f"there is no Service {wanted} in the namespace {self._namespace}"
            )
        for service in services:
            if reason := self._service_problem(service, pods):
                yield Candidate(service.metadata.name, reason=reason)

    def _service_problem(self, service: Service, pods: Mapping[str, Pod] | None) -> str | None:
        selector = service.spec.selector
        if not selector:
            return "the Service has no selector: the controller makes no EndpointSlices for it"
        if pods is not None and not any(service.selects(pod.metadata.labels or {}) for pod in pods.values()):
            return f"the Service selects nothing: no pod has the labels {_selector_text(selector)}"
        names = [port.name or "" for port in service.spec.ports or ()]
        if self._port_name not in names:
            found = ", ".join(map(repr, names)) or "none at all"
            return f"the Service has no port named {self._port_name!r} (there is {found})"
        return None

    async def _get(self, path: str, params: Mapping[str, str], kind: type[T], rule: PolicyRule) -> T:
        try:
            return await read_api(self._transport, path, params, kind)
        except ApiReadError as error:
            text = explain_refusal(error.code, str(error), rule, self._namespace)
            raise ApiReadError(error.code, text) from error


def _pod_problems(
    services: list[Service], pods: Mapping[str, Pod], in_slices: set[str] | None
) -> Iterator[Candidate]:
    for name, pod in pods.items():
        is_selected = any(service.selects(pod.metadata.labels or {}) for service in services)
        if services and not is_selected:
            yield Candidate(name, reason=_not_selected(services[0], pod))
        elif reason := pod_problem(pod):
            yield Candidate(name, reason=reason)
        elif services and in_slices is not None and name not in in_slices:
            yield Candidate(name, reason=_IN_NO_SLICE)


def _not_selected(service: Service, pod: Pod) -> str:
    labels = pod.metadata.labels or {}
    selector = service.spec.selector or {}
    wrong = {label: labels.get(label) for label, value in selector.items() if labels.get(label) != value}
    has = ", ".join(
        f"{label}={value}" if value is not None else f"no {label}" for label, value in wrong.items()
    )
    return f"the Service {service.metadata.name} selects {_selector_text(selector) or 'nothing'}; the pod has {has or 'that'}"


def _selector_text(selector: Mapping[str, str]) -> str:
    return ",".join(f"{label}={value}" for label, value in selector.items())


class KubernetesSource(Source):
    """Instances are the pods in the merged slices; their incarnation is `targetRef.uid`. `namespace`: the Kubernetes
    namespace. `port_name`: the slice port on which workers serve the wire contract. `grace`: seconds that a ready pod
    may be missing from all slices before it is removed, since the controller moves endpoints between slices by two
    writes.
    """

    def __init__(
        self,
        transport: ApiTransport,
        namespace: str,
        selection: Selection,
        *,
        port_name: str = "http",
        grace: float = 0.5,
        timings: Timings | None = None,
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._selection = selection
        self._diagnostics = Diagnostics(transport, namespace, selection, port_name)
        self._address_selection = AddressSelection(port_name)
        self._grace = grace
        self._timings = timings or Timings()

    async def run(self, key: ComponentKey, report: Report) -> None:
        """ForbiddenError when the first list is denied; ValueError when no Service can have the name of `key`."""
        selector = self._selection.selector(key)
        report.degraded(
            f"no answer yet to the first list of {selector} in the Kubernetes namespace {self._namespace}"
        )
        reflector = Reflector({"labelSelector": selector}, SliceDecoder(), self._timings)
        merged = MergedSet(key, self._address_selection, self._grace, report.reader)
        publisher = SnapshotPublisher(merged, report, LIST_SLICES, self._namespace, self._timings)
        publisher.explain_none_ready(
            f"instance of {key}", partial(self.explain, key), "its pods exist and are not ready"
        )
        path = SLICES.format(self._namespace)
        try:
            await ReflectorLoop(reflector, self._transport, path, self._timings, publisher).run()
        finally:
            await publisher.aclose()

    async def components(self) -> list[ComponentKey]:
        return await self._diagnostics.components()

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """Return what slices do not show: the Service and the pods that it selects or should select, each with one reason why
        it is no instance. Needs more Role rules than a watch; one that is missing is a candidate with the rule to add.
        """
        return await self._diagnostics.explain(key)

    async def aclose(self) -> None:
        await self._transport.aclose()
