"""The one ServiceRegistry, over any Membership: what an instance announces, and who shares a handle."""

import asyncio
import secrets
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Self

from discovery.errors import RegistrationError
from discovery.instance import Instance, InstanceStatus, check_address, check_instance_id
from discovery.source import ComponentKey, component_key
from registry.contract import Contract
from registry.handle import Membership, RegisteredInstance, Serving
from registry.server import ContractServer
from runtime.addresses import is_loopback


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a registry's instances announce, checked: ValueError or TypeError name the rule.

    `address`: how others reach this machine; None: only from this machine. `port`: where the contract is served,
    0 any free one. `contract`: the worker's application serves it, on `port`; None: it is served by us.
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
            raise ValueError(f"port {self.port} is not one: 1 to 65535, or 0 for any free one")
        if self.contract is not None:
            _check_mounted(self)

    def propose(self, key: ComponentKey) -> Instance:
        """An instance that nobody knows yet, with an id and an incarnation of its own."""
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

    def serve(self, contract: Contract) -> Serving:
        return _Mounted(self.port) if self.contract is not None else _OwnPort(self, contract)

    @property
    def host(self) -> str | None:
        """The interface to listen on: only this machine's loopback, or every one (None)."""
        if self.address is None:
            return "127.0.0.1"
        return self.address if is_loopback(self.address) else None


class MembershipRegistry:
    """`ServiceRegistry` over whatever `membership()` makes, one for each instance."""

    def __init__(self, membership: Callable[[], Membership], announcement: Announcement) -> None:
        self._membership = membership
        self._announcement = announcement
        self._handles: dict[ComponentKey, RegisteredInstance] = {}
        self._registering = asyncio.Lock()
        self._closed = False

    def register_instance(self, namespace: str, component: str) -> "HandleRegistration":
        return HandleRegistration(self, component_key(namespace, component))

    async def acquire(self, key: ComponentKey) -> RegisteredInstance:
        """The handle of `key`, opened if there is none, with one more user."""
        async with self._registering:
            if self._closed:
                raise RegistrationError("this registry is closed; open another one")
            handle = self._handles.get(key)
            if handle is not None and not handle.closed:
                return handle.share()
            if handle is not None:
                await handle.leave()
            self._handles[key] = await self._join(key)
            return self._handles[key].share()

    async def aclose(self) -> None:
        async with self._registering:
            self._closed = True
            handles = list(self._handles.values())
            self._handles.clear()
        await asyncio.gather(*(handle.leave() for handle in handles))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _join(self, key: ComponentKey) -> RegisteredInstance:
        told = self._announcement
        contract = told.contract or Contract(token=told.token)
        return await RegisteredInstance.join(
            told.propose(key), self._membership(), contract, told.serve(contract)
        )


class HandleRegistration:
    """A `Registration`: nothing happens before it is awaited or entered."""

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().close()


class _OwnPort:
    def __init__(self, announcement: Announcement, contract: Contract) -> None:
        self._announcement = announcement
        self._server = ContractServer(contract, ssl_context=announcement.ssl_context)

    async def start(self) -> int:
        return await self._server.start(self._announcement.host, self._announcement.port)

    async def aclose(self) -> None:
        await self._server.aclose()


@dataclass(frozen=True, slots=True)
class _Mounted:
    port: int

    async def start(self) -> int:
        return self.port

    async def aclose(self) -> None:
        """The worker's application goes on."""


def _check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"label {key!r}: {value!r} is not a string named by a string")
        try:
            (key + value).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"label {key!r}: {value!r} holds a lone surrogate, which is no text: decode it rightly"
            ) from error


def _check_mounted(announcement: Announcement) -> None:
    if announcement.port == 0:
        raise ValueError(
            "a contract in your own application needs `port`, the one that application listens on"
        )
    if announcement.token is not None or announcement.ssl_context is not None:
        raise ValueError(
            "`token` and `ssl_context` are for a port of its own; with a contract in your own application, "
            "give the token to `Contract` and TLS to the application"
        )
