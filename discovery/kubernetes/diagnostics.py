"""Answers `explain`: whether the Service exists, which pods it selects, and why a pod is no instance."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from discovery.kubernetes.api_read import ApiReadError, read_api
from discovery.kubernetes.objects import Pod, PodList, Service, ServiceList, pod_problem
from discovery.kubernetes.refusal import (
    GET_SERVICES,
    LIST_PODS,
    LIST_SLICES,
    PolicyRule,
    explain_refusal,
)
from discovery.kubernetes.selection import LabelSelection, Selection
from discovery.kubernetes.transport import ApiTransport
from discovery.kubernetes.wire import EndpointSliceList
from discovery.source import Candidate, ComponentKey, component_key

SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
_IN_NO_SLICE: Final = (
    "it is ready and in no EndpointSlice: does the EndpointSlice controller run, does its node exist?"
)

T = TypeVar("T")


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
        """Those in the labels of slices; empty when we may not list slices."""
        try:
            found = await self._get(SLICES.format(self._namespace), {}, EndpointSliceList, LIST_SLICES)
        except ApiReadError:
            return []
        keys = set()
        for item in found.items or ():
            labels = item.metadata.labels
            if labels is not None and labels.namespace and labels.component:
                keys.add(component_key(labels.namespace, labels.component))
        return sorted(keys)

    async def _pods_in_slices(self, key: ComponentKey) -> set[str] | None:
        """None when slices cannot be read; the watch reports that already."""
        params = {"labelSelector": self._selection.selector(key)}
        try:
            found = await self._get(SLICES.format(self._namespace), params, EndpointSliceList, LIST_SLICES)
        except ApiReadError:
            return None
        endpoints = (endpoint for item in found.items or () for endpoint in item.endpoints or ())
        return {endpoint.target_ref.name for endpoint in endpoints if endpoint.target_ref is not None}

    async def _services(self, key: ComponentKey) -> list[Service]:
        path = f"/api/v1/namespaces/{self._namespace}/services"
        name = self._selection.service(key)
        if name is None:
            params = {"labelSelector": self._selection.selector(key)}
            return list((await self._get(path, params, ServiceList, GET_SERVICES)).items or ())
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
                self._get(path, {"labelSelector": text}, PodList, LIST_PODS)
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
        if pods is not None and not any(_selects(selector, pod) for pod in pods.values()):
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
        is_selected = any(_selects(service.spec.selector or {}, pod) for service in services)
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


def _selects(selector: Mapping[str, str], pod: Pod) -> bool:
    labels = pod.metadata.labels or {}
    return bool(selector) and all(labels.get(label) == value for label, value in selector.items())


def _selector_text(selector: Mapping[str, str]) -> str:
    return ",".join(f"{label}={value}" for label, value in selector.items())
