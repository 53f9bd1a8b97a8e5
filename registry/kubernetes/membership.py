"""Membership by being a pod: readiness is the probe's, the EndpointSlices are the control plane's. Nothing is written."""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import anyio
import anyio.to_thread
import msgspec
import tenacity

from discovery.errors import DiscoveryError, RegistrationError
from discovery.instance import Instance, check_instance_id
from discovery.kubernetes.refusal import ApiRefusal, explain_refusal, parse_refusal
from discovery.kubernetes.selection import Selection
from discovery.kubernetes.transport import ApiTransport, Response, TransportError
from discovery.kubernetes.wire import decode_status
from discovery.source import ComponentKey
from registry.kubernetes.pod import OwnPod, missing_address, read_pod
from registry.kubernetes.pod_service import LIST_SERVICES, PodService, PodServiceList, Visibility

_PATIENCE: Final = 30.0
"""Seconds for which an API server may be away when a worker registers."""
_ANSWER_LIMIT: Final = 32 * 1024 * 1024
_ANSWER_DEADLINE: Final = 15.0
_SHOWN: Final = 200
_BACKOFF: Final = tenacity.wait_random_exponential(multiplier=0.5, max=5.0)


@dataclass(frozen=True, slots=True)
class ServiceCheck:
    """How to see that a Service selects this pod: `connect` opens the API server (DiscoveryError), `selection` and
    `port_name` are by what discovery finds a component. `patience` in seconds.
    """

    connect: Callable[[], Awaitable[ApiTransport]]
    selection: Selection
    port_name: str = "http"
    patience: float = _PATIENCE


class KubernetesMembership:
    """The pod that this process runs in as one instance: its id is the pod's name, its incarnation the pod's UID.

    `check` None: nobody looks for a Service. `namespace`, `instance_id`, `address`: what the worker was told, to be
    the pod's own; the pod's address counts.
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
        """The pod as an instance. RegistrationError, with the manifest lines that are missing, unless the pod knows
        itself, is labelled as `instance` says, and a Service of its namespace selects it.
        """
        pod = await anyio.to_thread.run_sync(read_pod, self._environment)
        address = pod.address or self._address
        self._compare(pod)
        key = ComponentKey(instance.namespace, instance.component)
        pod.check_labels(key)
        if address is None:
            raise missing_address()
        if self._check is not None:
            wanted = Visibility(key, self._check.selection.service(key), self._check.port_name, instance.port)
            wanted.check(pod, await self._services(self._check, pod.namespace))
        return replace(
            instance,
            id=check_instance_id(pod.name),
            incarnation=pod.uid,
            address=address,
            labels=MappingProxyType({**instance.labels, **pod.labels}),
        )

    def update(self, instance: Instance) -> None:
        """Nothing to write: the readiness probe asks the worker itself."""

    async def leave(self) -> None:
        """Nothing to take back: the control plane drops a pod that is not ready, terminating or gone."""

    def _compare(self, pod: OwnPod) -> None:
        told = {
            "instance id": (self._instance_id, pod.name),
            "Kubernetes namespace": (self._namespace, pod.namespace),
        }
        for what, (given, own) in told.items():
            if given is not None and given != own:
                raise RegistrationError(
                    f"the {what} {given!r} was given, but a pod's own counts, {own!r}: leave it out"
                )

    async def _services(self, check: ServiceCheck, namespace: str) -> list[PodService]:
        try:
            transport = await check.connect()
        except DiscoveryError as error:
            raise RegistrationError(f"no Service can be looked for: {error}") from error
        try:
            return await _patiently(transport, namespace, check.patience)
        finally:
            with anyio.CancelScope(shield=True):
                await transport.aclose()


class _UnavailableError(RegistrationError):
    """The API server could not say; asking again may help. `wait`: seconds that it asked for."""

    def __init__(self, text: str, wait: float = 0.0) -> None:
        super().__init__(text)
        self.wait = wait


async def _patiently(transport: ApiTransport, namespace: str, patience: float) -> list[PodService]:
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(_UnavailableError),
        stop=tenacity.stop_before_delay(patience),
        wait=_pause,
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            return await _list_services(transport, namespace)
    raise AssertionError("unreachable")  # tenacity raises what the last attempt did


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return max(_BACKOFF(state), error.wait if isinstance(error, _UnavailableError) else 0.0)


async def _list_services(transport: ApiTransport, namespace: str) -> list[PodService]:
    path = f"/api/v1/namespaces/{namespace}/services"
    try:
        with anyio.fail_after(_ANSWER_DEADLINE):
            async with transport.open(path, {}) as response:
                body = await _read(response)
    except TransportError as error:
        raise _UnavailableError(f"the API server cannot be asked for {path}: {error}") from error
    except TimeoutError as error:
        raise _UnavailableError(f"{path} was not answered within {_ANSWER_DEADLINE:g} s") from error
    if response.status != 200:
        refusal = parse_refusal(response.status, decode_status(body), response.headers)
        raise _refused(refusal, path, namespace)
    try:
        return msgspec.json.decode(body, type=PodServiceList).items or []
    except msgspec.DecodeError as error:
        said = body[:_SHOWN].decode(errors="replace")
        raise RegistrationError(
            f"{path} is no list of Services ({error}); is an API server there? It said {said!r}"
        ) from error


async def _read(response: Response) -> bytes:
    body = bytearray()
    async for chunk in response.chunks:
        body += chunk
        if len(body) > _ANSWER_LIMIT:
            raise RegistrationError(
                f"the list of Services is longer than {_ANSWER_LIMIT} bytes; `?assert_service=false` asks for none"
            )
    return bytes(body)


def _refused(refusal: ApiRefusal, path: str, namespace: str) -> RegistrationError:
    if refusal.code == 429 or refusal.code >= 500:
        return _UnavailableError(f"{path}: {refusal.text}", refusal.retry_after or 0.0)
    reason = explain_refusal(refusal.code, refusal.text, LIST_SERVICES, namespace)
    return RegistrationError(
        f"whether a Service selects this pod cannot be seen at {path}: {reason}\n"
        "`?assert_service=false` in the URL asks for nothing"
    )
