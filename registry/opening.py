"""Opens a registry from a URL."""

import ssl
from collections.abc import Callable, Mapping
from typing import TypeAlias

from discovery.extension import installed_schemes
from discovery.opening import default_url, import_backend, split_scheme
from discovery.source import SCHEMES
from registry.contract import Contract
from registry.extension import REGISTRIES, open_installed
from registry.registration import Announcement, MembershipRegistry

OpenRegistry: TypeAlias = Callable[[str, Announcement], MembershipRegistry]


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
    """The registry that `url` names, such as `file:///path` or `kubernetes://`; docs/discovery-sources.md lists the schemes.

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
    scheme, rest = split_scheme(url)
    expected = ", ".join(source.form for source in SCHEMES.values() if source.membership)
    if scheme not in SCHEMES:
        if rest and (opened := open_installed(url, scheme)) is not None:
            return MembershipRegistry(opened, announcement)
        expected += installed_schemes(REGISTRIES)
        raise ValueError(f"{url!r} is not a registry URL; expected one of {expected}")
    if not SCHEMES[scheme].membership:
        raise ValueError(
            f"{url!r} names workers that others list, so workers cannot register there; expected one of {expected}"
        )
    opener: OpenRegistry = import_backend(scheme, SCHEMES[scheme].membership)
    return opener(url, announcement)
