"""Implements `ServiceRegistry` over any `Membership`: validates the settings, shares one handle for each key."""

import asyncio
import secrets
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from adsum.addresses import is_loopback
from discovery.errors import RegistrationError
from discovery.instance import Instance, InstanceStatus, check_address, check_instance_id
from discovery.source import ComponentKey, component_key
from registry.contract import Contract
from registry.handle import Membership, RegisteredInstance, Serving
from registry.server import ContractServer


@dataclass(frozen=True, slots=True)
class Announcement:
    """The announcement of the instances of one registry, as `registry.open` takes it; validated, ValueError or TypeError.

    `address` None: reachable from this machine only. `port` 0: any free one. `contract` None: served on a port of ours.
    """

    address: str | None = None
    port: int = 0
    instance_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ssl_context: ssl.SSLContext | None = None
    token: str | None = None
    contract: Contract | None = None

    def __post_init__(self) -> None:
        if self.address is not None:
            check_address(self.address)
        _check_labels(self.labels)
        if self.instance_id is not None:
            check_instance_id(self.instance_id)
        if not 0 <= self.port <= 65535:
            raise ValueError(f"{self.port} is not a port; expected 1 to 65535, or 0 for any free one")
        if self.contract is not None:
            _check_mounted(self)

    def new_instance(self, key: ComponentKey) -> Instance:
        """An unpublished instance with a new incarnation; the membership may replace both id and incarnation."""
        return Instance(
            id=self.instance_id or f"{key.component}-{secrets.token_hex(4)}",
            namespace=key.namespace,
            component=key.component,
            address=self.address or "127.0.0.1",
            port=self.port,
            incarnation=secrets.token_hex(8),
            status=InstanceStatus.NOT_READY,
            labels=MappingProxyType(dict(self.labels)),
        )

    def contract_server(self, contract: Contract) -> Serving:
        """On a loopback address if nothing else is announced, else on every interface: `address` may be a name or behind NAT."""
        if self.contract is not None:
            return _MountedContract(self.port)
        address = self.address or "127.0.0.1"
        host = address if is_loopback(address) else None
        return ContractServer(contract, host, self.port, ssl_context=self.ssl_context)


class MembershipRegistry:
    """The `ServiceRegistry` of every backend; calls `membership()` once for each instance."""

    def __init__(self, membership: Callable[[], Membership], announcement: Announcement) -> None:
        self._membership = membership
        self._announcement = announcement
        self._handles: dict[ComponentKey, RegisteredInstance] = {}
        self._registering = asyncio.Lock()
        self._closed = False

    def register_instance(self, namespace: str, component: str) -> "HandleRegistration":
        return HandleRegistration(self, component_key(namespace, component))

    async def acquire(self, key: ComponentKey) -> RegisteredInstance:
        """The handle of `key`, joined if there is none, with one more user."""
        async with self._registering:
            if self._closed:
                raise RegistrationError("this registry is closed; open another one")
            handle = self._handles.get(key)
            if handle is not None and not handle.closed:
                return handle.add_user()
            if handle is not None:
                await handle.leave()
            self._handles[key] = await self._join(key)
            return self._handles[key].add_user()

    async def aclose(self) -> None:
        async with self._registering:
            self._closed = True
            handles = list(self._handles.values())
            self._handles.clear()
        await asyncio.gather(*(handle.leave() for handle in handles))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:  # a type checker reports the missing methods itself

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "a registry is entered with `async with`; without await: `with registry.blocking.open(...)`"
            )

        __exit__ = __enter__

    async def _join(self, key: ComponentKey) -> RegisteredInstance:
        announcement = self._announcement
        contract = announcement.contract or Contract(token=announcement.token)
        return await RegisteredInstance.join(
            announcement.new_instance(key),
            self._membership(),
            contract,
            announcement.contract_server(contract),
        )


class HandleRegistration:
    """A `Registration`. Registers when it is awaited or entered, not before."""

    def __init__(self, registry: MembershipRegistry, key: ComponentKey) -> None:
        self._registry = registry
        self._key = key
        self._entered: list[RegisteredInstance] = []

    def __await__(self) -> Generator[Any, None, RegisteredInstance]:
        return self._registry.acquire(self._key).__await__()

    def __getattr__(self, name: str) -> Any:
        hint = (
            ""
            if name.startswith("_")
            else ": await register_instance(...), or enter it with `async with`, first"
        )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}{hint}")

    async def __aenter__(self) -> RegisteredInstance:
        handle = await self._registry.acquire(self._key)
        self._entered.append(handle)
        return handle

    async def __aexit__(self, *_: object) -> None:
        await self._entered.pop().close()


@dataclass(frozen=True, slots=True)
class _MountedContract:
    port: int

    async def start(self) -> int:
        return self.port

    async def aclose(self) -> None:
        """The worker's own application keeps its port."""


def _check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"label {key!r}: {value!r}; expected a string key and a string value")
        try:
            (key + value).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"label {key!r}: {value!r} has a lone surrogate, which UTF-8 cannot encode; expected Unicode text"
            ) from error


def _check_mounted(announcement: Announcement) -> None:
    if announcement.port == 0:
        raise ValueError(
            "a contract in your own application needs `port`, the port that this application listens on"
        )
    if announcement.token is not None or announcement.ssl_context is not None:
        raise ValueError(
            "`token` and `ssl_context` apply to a port of adsum's own; with a contract in your own application, "
            "pass the token to `Contract` and configure TLS in the application"
        )
