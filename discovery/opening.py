"""From a URL to a ServiceDiscovery, and the default URL."""

import os
import ssl
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from discovery.extension import SOURCES, listed, open_installed
from discovery.metadata import silence
from discovery.metadata.client import MetadataClient
from discovery.service import SourceDiscovery
from discovery.source import SCHEMES, Source

_IN_A_POD: Final = "KUBERNETES_SERVICE_HOST"


def default_url() -> str:
    """`$ADSUM_DISCOVERY`, else `kubernetes://` in a pod, else `file://` with the default root."""
    if url := os.environ.get("ADSUM_DISCOVERY"):
        return url
    return "kubernetes://" if os.environ.get(_IN_A_POD) else "file://"


def shown_url(url: str | None) -> str:
    """For messages: `url`, or the default one, with the directory itself where it means the default root."""
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
    """The discovery that `url` names; `ssl_context` and `token` are for asking workers for their metadata.

    `silent_after`: seconds within which a watch tells that a worker which stopped is unreachable. None:
    `$ADSUM_SILENT_AFTER`, else 4. 0: only a watch with metadata looks, and tells it after up to 12.
    Raises ValueError for a URL that is none of ours. Nothing is connected or read before the first call.
    """
    client = MetadataClient(ssl_context=ssl_context, token=token, silence=silence.given(silent_after))
    return SourceDiscovery(open_source(url or default_url()), client=client)


def open_source(url: str) -> Source:
    """The source that `url` names; each backend is imported when it is asked for."""
    scheme, _, rest = url.partition("://")
    if rest and scheme.lower() not in SOURCES.built_in:
        return open_installed(url, scheme.lower()) or _unknown(url)
    if scheme.lower() == "static":  # by hand: urlsplit refuses [::1]:80 behind another host
        from discovery.static.source import open_static

        hosts, slash, path = rest.partition("/")
        return open_static(hosts, unquote(slash + path))
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            from discovery.filesystem.source import FilesystemSource

            return FilesystemSource(file_path(parts, url))
        case "memory":
            from discovery.memory import MemorySource, named

            return MemorySource(named(parts.netloc + parts.path))
        case "kubernetes":
            from discovery.kubernetes.opening import open_kubernetes

            return open_kubernetes(parts, url)
    return _unknown(url)


def _unknown(url: str) -> NoReturn:
    expected = f"expected one of {SCHEMES}{listed(SOURCES)}"
    raise ValueError(f"{url!r} is not a discovery URL; {expected}")


def file_path(parts: SplitResult, url: str) -> Path | None:
    """The path of a `file:` URL; None for the default root. A host part is an error: `file://tmp/x` is a slip."""
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{url!r} names the host {parts.netloc!r}; a path needs three slashes: file:///path")
    return Path(unquote(parts.path)) if parts.path not in ("", "/") else None
