"""Opens a `ServiceDiscovery` from a URL; the default URL."""

import os
import ssl
from importlib import import_module
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from adsum.command_line import not_installed
from discovery.extension import SOURCES, OpenSource, installed_schemes, open_installed
from discovery.metadata.client import MetadataClient
from discovery.metadata.silence import silence_timings
from discovery.service import SourceDiscovery
from discovery.source import SCHEMES, SOURCE_URLS, Source

_POD_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"


def default_url() -> str:
    """`$ADSUM_DISCOVERY`, else `kubernetes://` in a pod, else `file://` with the default root."""
    if url := os.environ.get("ADSUM_DISCOVERY"):
        return url
    return "kubernetes://" if os.environ.get(_POD_VARIABLE) else "file://"


def display_url(url: str | None) -> str:
    """For messages: `url`, or the default one, with the default root in full."""
    url = url or default_url()
    if not url.startswith("file:"):
        return url
    from discovery.filesystem.root import default_root, file_path

    return f"file://{default_root()}" if file_path(url) is None else url


def open(
    url: str | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    token: str | None = None,
    silent_after: float | None = None,
) -> SourceDiscovery:
    """The discovery for `url`, such as `file:///path` or `kubernetes://`; docs/discovery-sources.md lists the schemes.

    Without `url`: `$ADSUM_DISCOVERY`, else `kubernetes://` in a Pod, else `file://`. `ssl_context` and `token` are used for
    GETs of workers' metadata. `silent_after`: seconds within which a watch reports a stopped worker as unreachable. None:
    `$ADSUM_SILENT_AFTER`, else 4. 0: only a watch with metadata reports it, within 12 s.
    Raises ValueError for an unknown or invalid URL. Does no I/O: that begins with the first call.
    """
    client = MetadataClient(ssl_context=ssl_context, token=token, silence=silence_timings(silent_after))
    return SourceDiscovery(open_source(url or default_url()), client=client)


def open_source(url: str) -> Source:
    """The source for `url`; imports its backend, so that others cost nothing."""
    scheme, rest = split_scheme(url)
    if scheme not in SCHEMES:
        return (rest and open_installed(url, scheme)) or _raise_unknown(url)
    opener: OpenSource = import_backend(scheme, SCHEMES[scheme].opener)
    return opener(url)


def split_scheme(url: str) -> tuple[str, str]:
    """The scheme in lower case, and what follows its two slashes."""
    scheme, separator, rest = url.partition("://")
    # urlsplit refuses [::1]:80 after another host
    return scheme.lower() if separator else urlsplit(url).scheme, rest


def import_backend(scheme: str, reference: str) -> Any:
    """Import what `reference`, a `module:name`, names. Raises ValueError if a library is missing that the scheme needs."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{scheme}:// cannot be used: {not_installed(error, scheme)}") from error


def _raise_unknown(url: str) -> NoReturn:
    if url.lower().startswith(("http://", "https://")):
        raise ValueError(
            f"{url!r} is not a discovery URL; for servers at fixed addresses: static://host:port,host:port"
        )
    expected = f"expected one of {SOURCE_URLS}{installed_schemes(SOURCES)}"
    raise ValueError(f"{url!r} is not a discovery URL; {expected}")
