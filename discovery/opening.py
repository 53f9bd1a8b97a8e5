"""Opens a `ServiceDiscovery` from a URL; the default URL."""

import os
import ssl
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from adsum.command_line import not_installed
from discovery.extension import SOURCES, installed_schemes, open_installed
from discovery.metadata.client import MetadataClient
from discovery.metadata.silence import silence_timings
from discovery.service import SourceDiscovery
from discovery.source import SOURCE_URLS, Source

_POD_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"


def default_url() -> str:
    """`$ADSUM_DISCOVERY`, else `kubernetes://` in a pod, else `file://` with the default root."""
    if url := os.environ.get("ADSUM_DISCOVERY"):
        return url
    return "kubernetes://" if os.environ.get(_POD_VARIABLE) else "file://"


def display_url(url: str | None) -> str:
    """For messages: `url`, or the default one, with the default root in full."""
    url = url or default_url()
    parts = urlsplit(url) if url.startswith("file:") else None
    if parts is None or file_path(parts, url) is not None:
        return url
    from discovery.filesystem.root import default_root

    return f"file://{default_root()}"


def open(
    url: str | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    token: str | None = None,
    silent_after: float | None = None,
) -> SourceDiscovery:
    """The discovery for `url`: `file:///path`, `static://host:port,...`, `static:///file.yaml`, `kubernetes://`,
    `etcd://host:2379/prefix`, `memory://name`, or a scheme of an installed package.

    Without `url`: `$ADSUM_DISCOVERY`, else `kubernetes://` in a Pod, else `file://`. `ssl_context` and `token` are used for
    GETs of workers' metadata. `silent_after`: seconds within which a watch reports a stopped worker as unreachable. None:
    `$ADSUM_SILENT_AFTER`, else 4. 0: only a watch with metadata reports it, within 12 s.
    Raises ValueError for an unknown or invalid URL. Does no I/O: that begins with the first call.
    """
    client = MetadataClient(ssl_context=ssl_context, token=token, silence=silence_timings(silent_after))
    return SourceDiscovery(open_source(url or default_url()), client=client)


def open_source(url: str) -> Source:
    """The source for `url`; imports its backend, so that others cost nothing."""
    scheme, _, rest = url.partition("://")
    if rest and scheme.lower() not in SOURCES.built_in:
        return open_installed(url, scheme.lower()) or _raise_unknown(url)
    if scheme.lower() == "etcd":
        return _open_etcd(url)
    if scheme.lower() == "static":  # not by urlsplit: it refuses [::1]:80 after another host
        from discovery.static.source import open_static

        hosts, slash, path = rest.partition("/")
        return open_static(hosts, unquote(slash + path))
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            from discovery.filesystem.source import FilesystemSource

            return FilesystemSource(file_path(parts, url))
        case "memory":
            from discovery.memory import MemorySource, named_store

            return MemorySource(named_store(parts.netloc + parts.path))
        case "kubernetes":
            from discovery.kubernetes.opening import open_kubernetes

            return open_kubernetes(parts, url)
    return _raise_unknown(url)


def _open_etcd(url: str) -> Source:
    try:
        from discovery.etcd.source import open_etcd_source
    except ModuleNotFoundError as error:
        raise ValueError(f"etcd:// cannot be used: {not_installed(error, 'etcd')}") from error
    return open_etcd_source(url)


def _raise_unknown(url: str) -> NoReturn:
    if url.lower().startswith(("http://", "https://")):
        raise ValueError(
            f"{url!r} is not a discovery URL; for servers at fixed addresses: static://host:port,host:port"
        )
    expected = f"expected one of {SOURCE_URLS}{installed_schemes(SOURCES)}"
    raise ValueError(f"{url!r} is not a discovery URL; {expected}")


def file_path(parts: SplitResult, url: str) -> Path | None:
    """The path of a `file:` URL; None for the default root. Raises ValueError for a host: `file://tmp/x` is a typing error."""
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{url!r} names the host {parts.netloc!r}; a path needs three slashes: file:///path")
    return Path(unquote(parts.path)) if parts.path not in ("", "/") else None
