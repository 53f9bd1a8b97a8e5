"""Registers a Pod without writing anything: checks what makes it an instance, and says which manifest lines are missing."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import tenacity

from discovery.errors import DiscoveryError, RegistrationError
from discovery.instance import Instance, check_instance_id
from discovery.kubernetes.api.objects import Service
from discovery.kubernetes.api.refusal import explain_refusal
from discovery.kubernetes.api.transport import ApiReadError, ApiTransport, ClusterTransport, read_api
from discovery.kubernetes.opening import PODS_PARAMETERS, find_cluster, parse_options
from discovery.kubernetes.reflector.decoding import ObjectList
from discovery.kubernetes.slices.source import SERVICE_TEMPLATE, LabelSelection, Selection, ServiceSelection
from discovery.source import ComponentKey
from registry.kubernetes.pod import OwnPod, missing_address, read_pod
from registry.kubernetes.pod_service import LIST_SERVICES, Visibility
from registry.registration import Announcement, MembershipRegistry

_RETRY_TIMEOUT: Final = 30.0
"""Seconds for which the list of Services is retried when a worker registers."""
_BACKOFF: Final = tenacity.wait_random_exponential(multiplier=0.5, max=5.0)


@dataclass(frozen=True, slots=True)
class ServiceCheck:
    """How to check that a Service selects this pod. `connect` opens a transport to the API server or raises
    DiscoveryError; `selection` and `port_name` are those by which discovery finds a component; `retry_timeout` in
    seconds.
    """

    connect: Callable[[], Awaitable[ApiTransport]]
    selection: Selection
    port_name: str = "http"
    retry_timeout: float = _RETRY_TIMEOUT


class KubernetesMembership:
    """The pod that this process runs in, as an instance: its id is the pod's name, its incarnation the pod's UID.

    `check` None skips the check of Services. `namespace` and `instance_id`, if given, must be the pod's own; `address`
    is used only if the pod does not know its IP.
    """

    def __init__(
        self,
        check: ServiceCheck | None,
        *,
        namespace: str | None = None,
        instance_id: str | None = None,
        address: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._check = check
        self._namespace = namespace
        self._instance_id = instance_id
        self._address = address
        self._environment = environment

    async def join(self, instance: Instance) -> Instance:
        """The pod as an instance. Raises RegistrationError, with the missing manifest lines, unless the downward API
        identifies the pod, it has the labels of `instance`, and a Service of its namespace selects it.
        """
        pod = await anyio.to_thread.run_sync(read_pod, self._environment)
        address = pod.address or self._address
        self._check_given_names(pod)
        key = ComponentKey(instance.namespace, instance.component)
        pod.check_labels(key)
        if address is None:
            raise missing_address()
        if self._check is not None:
            requirement = Visibility(
                key, self._check.selection.service(key), self._check.port_name, instance.port
            )
            requirement.check(pod, await self._services(self._check, pod.namespace))
        return replace(
            instance,
            id=check_instance_id(pod.name),
            incarnation=pod.uid,
            address=address,
            labels=MappingProxyType({**instance.labels, **pod.labels}),
        )

    def update(self, instance: Instance) -> None:
        """Does nothing: kubelet's readiness probe asks the worker itself."""

    async def leave(self) -> None:
        """Does nothing: the EndpointSlice controller drops a pod that is not ready, terminating or deleted."""

    def _check_given_names(self, pod: OwnPod) -> None:
        given_and_own = {
            "instance id": (self._instance_id, pod.name),
            "Kubernetes namespace": (self._namespace, pod.namespace),
        }
        for what, (given, own) in given_and_own.items():
            if given is not None and given != own:
                raise RegistrationError(f"the {what} {given!r} was given, but this pod's is {own!r}: omit it")

    async def _services(self, check: ServiceCheck, namespace: str) -> Sequence[Service]:
        try:
            transport = await check.connect()
        except DiscoveryError as error:
            raise RegistrationError(f"the Services of this pod cannot be listed: {error}") from error
        try:
            return await _list_services(transport, namespace, check.retry_timeout)
        finally:
            with anyio.CancelScope(shield=True):
                await transport.aclose()


async def _list_services(transport: ApiTransport, namespace: str, retry_timeout: float) -> Sequence[Service]:
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_may_pass),
        stop=tenacity.stop_before_delay(retry_timeout),
        wait=_backoff,
        reraise=True,
    )
    path = f"/api/v1/namespaces/{namespace}/services"
    try:
        return (await retrying(read_api, transport, path, {}, ObjectList[Service])).items or ()
    except ApiReadError as error:
        reason = explain_refusal(error.code, str(error), LIST_SERVICES, namespace)
        skipped = "" if _may_pass(error) else "\n`?assert_service=false` in the URL skips this check"
        raise RegistrationError(f"the Services of this pod cannot be listed: {reason}{skipped}") from error


def _may_pass(error: BaseException) -> bool:
    """Whether it may help to ask again."""
    if not isinstance(error, ApiReadError):
        return False
    return error.code is None or error.code == 429 or error.code >= 500


def _backoff(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return max(_BACKOFF(state), (error.retry_after or 0.0) if isinstance(error, ApiReadError) else 0.0)


DEFAULT_PORT: Final = 8080
"""The port of Dynamo's probes and Services, where the contract is served by default."""


def open_pod(
    url: str, announcement: Announcement, environment: Mapping[str, str] = os.environ
) -> MembershipRegistry:
    """Takes discovery's URL, and `assert_service=false` in addition. Raises ValueError for an invalid URL.

    The address defaults to `POD_IP`, the port to 8080 on every interface.
    """
    parts = urlsplit(url)
    options = parse_options(parts, url)
    check = _service_check(options, url)
    address = environment.get("POD_IP") or announcement.address
    with_defaults = replace(announcement, address=address, port=announcement.port or DEFAULT_PORT)
    return MembershipRegistry(
        lambda: KubernetesMembership(
            check,
            namespace=parts.netloc or None,
            instance_id=announcement.instance_id,
            address=address,
            environment=environment,
        ),
        with_defaults,
    )


def _service_check(options: Mapping[str, str], url: str) -> ServiceCheck | None:
    wanted = options.get("assert_service", "true")
    if wanted not in ("true", "false"):
        raise ValueError(f"{url!r}: assert_service={wanted!r}; expected true or false")
    selection: Selection = ServiceSelection(options.get("service", SERVICE_TEMPLATE))
    if options.get("labels") == "true":
        selection = LabelSelection()

    async def connect() -> ApiTransport:
        return ClusterTransport(await find_cluster(options))

    if wanted == "false" or options.keys() & PODS_PARAMETERS:
        return None
    return ServiceCheck(connect, selection, options.get("port", "http"))
