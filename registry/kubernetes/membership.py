"""Registers a Pod without writing anything: checks what makes it an instance, and says which manifest lines are missing."""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec
import tenacity

from discovery.errors import DiscoveryError, RegistrationError
from discovery.instance import Instance, check_instance_id
from discovery.kubernetes.api.refusal import ApiRefusal, decode_status, explain_refusal, parse_refusal
from discovery.kubernetes.api.transport import ApiTransport, ClusterTransport, Response, TransportError
from discovery.kubernetes.opening import PODS_PARAMETERS, find_cluster, parse_options
from discovery.kubernetes.slices.source import SERVICE_TEMPLATE, LabelSelection, Selection, ServiceSelection
from discovery.source import ComponentKey
from registry.kubernetes.pod import OwnPod, missing_address, read_pod
from registry.kubernetes.pod_service import LIST_SERVICES, PodService, PodServiceList, Visibility
from registry.registration import Announcement, MembershipRegistry

_RETRY_TIMEOUT: Final = 30.0
"""Seconds for which the list of Services is retried when a worker registers."""
_MAX_RESPONSE_BYTES: Final = 32 * 1024 * 1024
_RESPONSE_TIMEOUT: Final = 15.0
_MAX_QUOTED: Final = 200
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

    async def _services(self, check: ServiceCheck, namespace: str) -> list[PodService]:
        try:
            transport = await check.connect()
        except DiscoveryError as error:
            raise RegistrationError(f"the Services of this pod cannot be listed: {error}") from error
        try:
            return await _list_with_retries(transport, namespace, check.retry_timeout)
        finally:
            with anyio.CancelScope(shield=True):
                await transport.aclose()


class _UnavailableError(RegistrationError):
    """A failure that a retry may cure. `retry_after`: seconds that the API server asked for (Retry-After)."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


async def _list_with_retries(
    transport: ApiTransport, namespace: str, retry_timeout: float
) -> list[PodService]:
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(_UnavailableError),
        stop=tenacity.stop_before_delay(retry_timeout),
        wait=_backoff,
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            return await _list_services(transport, namespace)
    raise AssertionError("unreachable")  # with `reraise`, tenacity raises the last attempt's error


def _backoff(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return max(_BACKOFF(state), error.retry_after if isinstance(error, _UnavailableError) else 0.0)


async def _list_services(transport: ApiTransport, namespace: str) -> list[PodService]:
    path = f"/api/v1/namespaces/{namespace}/services"
    try:
        with anyio.fail_after(_RESPONSE_TIMEOUT):
            async with transport.open(path, {}) as response:
                body = await _read_body(response)
    except TransportError as error:
        raise _UnavailableError(f"{path} cannot be read from the API server: {error}") from error
    except TimeoutError as error:
        raise _UnavailableError(f"{path} was not answered within {_RESPONSE_TIMEOUT:g} s") from error
    if response.status != 200:
        refusal = parse_refusal(response.status, decode_status(body), response.headers)
        raise _refusal_error(refusal, path, namespace)
    try:
        return msgspec.json.decode(body, type=PodServiceList).items or []
    except msgspec.DecodeError as error:
        shown = body[:_MAX_QUOTED].decode(errors="replace")
        raise RegistrationError(
            f"{path} is not a list of Services ({error}); is this an API server? It answered {shown!r}"
        ) from error


async def _read_body(response: Response) -> bytes:
    body = bytearray()
    async for chunk in response.chunks:
        body += chunk
        if len(body) > _MAX_RESPONSE_BYTES:
            raise RegistrationError(
                f"the list of Services has more than {_MAX_RESPONSE_BYTES} bytes; `?assert_service=false` skips this check"
            )
    return bytes(body)


def _refusal_error(refusal: ApiRefusal, path: str, namespace: str) -> RegistrationError:
    if refusal.code == 429 or refusal.code >= 500:
        return _UnavailableError(f"{path}: {refusal.text}", refusal.retry_after or 0.0)
    reason = explain_refusal(refusal.code, refusal.text, LIST_SERVICES, namespace)
    return RegistrationError(
        f"{path} does not tell whether a Service selects this pod: {reason}\n"
        "`?assert_service=false` in the URL skips this check"
    )


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
