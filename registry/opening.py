"""From a URL to a ServiceRegistry."""

import ssl
from collections.abc import Callable, Mapping
from typing import NoReturn
from urllib.parse import urlsplit

from discovery.extension import installed_schemes
from discovery.opening import default_url, file_path
from registry.contract import Contract
from registry.extension import REGISTRIES, open_installed
from registry.handle import Membership
from registry.registration import Announcement, MembershipRegistry

_EXPECTED = "file:///path, kubernetes://, memory://name"


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
    """The registry that `url` names: `file:///path`, `kubernetes://`, `memory://name`; default as `discovery.open`.

    `address`: host name or IP address by which others reach this machine; without it the contract is served to this
    machine only, on 127.0.0.1. `port`: where it is served, any free one without it. `instance_id`: made up without
    it. On Kubernetes the three are the pod's IP, 8080 and the pod's name. `ssl_context`, `token`: serve over TLS, ask
    readers of the metadata for a bearer token. `contract`: one that the worker mounted in its own application, which
    listens on `port`.

    Raises ValueError or TypeError. Nothing is opened before an instance is registered.
    """
    announcement = Announcement(
        address, port or 0, instance_id, dict(labels or {}), ssl_context, token, contract
    )
    return _registry(url or default_url(), announcement)


def _registry(url: str, announcement: Announcement) -> MembershipRegistry:
    """The registry of one backend; each is imported when it is asked for."""
    scheme, _, rest = url.partition("://")
    if rest and scheme.lower() not in REGISTRIES.built_in:
        opened = open_installed(url, scheme.lower())
        return MembershipRegistry(opened, announcement) if opened is not None else _unknown(url)
    if urlsplit(url).scheme == "kubernetes":
        from registry.kubernetes.opening import open_pod

        return open_pod(url, announcement)
    return MembershipRegistry(_membership(url), announcement)


def _membership(url: str) -> Callable[[], Membership]:
    """How to make one instance's membership; each backend is imported when it is asked for."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            from registry.filesystem.membership import FilesystemMembership

            root = file_path(parts, url)
            return lambda: FilesystemMembership(root)
        case "memory":
            from discovery.memory import named_store
            from registry.memory import MemoryMembership

            store = named_store(parts.netloc + parts.path)
            return lambda: MemoryMembership(store)
        case "static":
            raise ValueError(
                f"{url!r} lists fixed addresses: nobody registers there; register in {_EXPECTED}"
            )
    return _unknown(url)


def _unknown(url: str) -> NoReturn:
    raise ValueError(
        f"{url!r} is not a registry URL; expected one of {_EXPECTED}{installed_schemes(REGISTRIES)}"
    )
