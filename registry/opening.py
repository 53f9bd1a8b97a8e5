"""Opens a registry from a URL."""

import ssl
from collections.abc import Callable, Mapping
from typing import NoReturn
from urllib.parse import urlsplit

from adsum.command_line import not_installed
from discovery.errors import RegistrationError
from discovery.extension import installed_schemes
from discovery.filesystem.root import file_path
from discovery.instance import Instance
from discovery.memory import MemoryStore, named_store
from discovery.opening import default_url
from registry.contract import Contract
from registry.extension import REGISTRIES, open_installed
from registry.handle import Membership
from registry.registration import Announcement, MembershipRegistry

_EXPECTED = "file:///path, kubernetes://, etcd://host:2379/prefix, memory://name"


def open(  # noqa: PLR0913  # what a worker may say, each optional and by name; a settings object would only hide it
    url: str | None = None,
    *,
    address: str | None = None,
    port: int | None = None,
    instance_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    token: str | None = None,
    contract: Contract | None = None,
) -> MembershipRegistry:
    """The registry that `url` names: `file:///path`, `kubernetes://`, `etcd://host:2379/prefix`, `memory://name`, or a scheme of
    an installed package.

    Without `url`: $ADSUM_DISCOVERY, else `kubernetes://` in a Pod, else `file://`. `address`: the host name or IP address
    at which others reach this machine; None serves the contract on 127.0.0.1 only. `port`: where it is served, None on
    any free one. `instance_id`: None generates one. On Kubernetes these default to the Pod's IP, 8080 and the Pod's
    name. `ssl_context` serves over TLS, `token` is the bearer token that readers of the metadata need. `contract`: one
    that the worker mounted in its own application, which listens on `port`.

    Raises ValueError or TypeError. Opens no socket or file before an instance is registered.
    """
    announcement = Announcement(
        address, port or 0, instance_id, dict(labels or {}), ssl_context, token, contract
    )
    return _registry(url or default_url(), announcement)


def _registry(url: str, announcement: Announcement) -> MembershipRegistry:
    """Imports only the backend that the URL names: kubernetes-asyncio alone takes over a second."""
    scheme, _, rest = url.partition("://")
    if rest and scheme.lower() not in REGISTRIES.built_in:
        opened = open_installed(url, scheme.lower())
        return MembershipRegistry(opened, announcement) if opened is not None else _unknown(url)
    if scheme.lower() == "kubernetes":
        from registry.kubernetes.membership import open_pod

        return open_pod(url, announcement)
    return MembershipRegistry(_membership(url), announcement)


def _membership(url: str) -> Callable[[], Membership]:
    """A factory of memberships of a built-in scheme, called once for each instance."""
    if url.partition("://")[0].lower() == "etcd":  # not by urlsplit: it refuses [::1]:80 after another host
        return _etcd_membership(url)
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            from registry.filesystem.membership import FilesystemMembership

            root = file_path(url)
            return lambda: FilesystemMembership(root)
        case "memory":
            store = named_store(parts.netloc + parts.path)
            return lambda: MemoryMembership(store)
        case "static":
            raise ValueError(
                f"{url!r} lists fixed addresses, so workers cannot register there; expected one of {_EXPECTED}"
            )
    return _unknown(url)


def _etcd_membership(url: str) -> Callable[[], Membership]:
    try:
        from registry.etcd.membership import open_etcd_membership
    except ModuleNotFoundError as error:
        raise ValueError(f"etcd:// cannot be used: {not_installed(error, 'etcd')}") from error
    return open_etcd_membership(url)


def _unknown(url: str) -> NoReturn:
    raise ValueError(
        f"{url!r} is not a registry URL; expected one of {_EXPECTED}{installed_schemes(REGISTRIES)}"
    )


class MemoryMembership:
    """The membership of one instance in `store`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._instance: Instance | None = None

    async def join(self, instance: Instance) -> Instance:
        """Raises `RegistrationError` if the id is taken."""
        if not self._store.put(instance):
            raise RegistrationError(
                f"the instance id {instance.id!r} is taken in {instance.namespace}/{instance.component}: "
                "choose another id, or none and one is made"
            )
        self._instance = instance
        return instance

    def update(self, instance: Instance) -> None:
        self._store.put(instance)

    async def leave(self) -> None:
        if self._instance is not None:
            self._store.remove(self._instance)
            self._instance = None
