"""Chooses the source of workers from flags, environment and configuration (pure).

The Go picker finds Pods by an InferencePool or a label selector, which we do not support. Its flags are an error if
nothing else names a source: a picker with an empty pool would look healthy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from epp.config.parameters import FileDiscoveryParameters
from epp.config.settings import Settings
from runtime.config.problems import ConfigError

_REMEDY: Final = (
    "name a source of workers: --discovery kubernetes://NAMESPACE with --namespace and --component for workers that "
    "announce themselves (docs/kubernetes.md), --endpoint HOST:PORT or the plugin file-discovery for listed ones"
)


class SourceError(ValueError):
    """The flags name workers in an unsupported way; the text says what to use."""


@dataclass(frozen=True, slots=True)
class WorkerSource:
    """A discovery URL, None for the default one, or the file of the plugin `file-discovery`.

    `ignored_flags`: given flags without effect.
    """

    url: str | None = None
    file: FileDiscoveryParameters | None = None
    ignored_flags: tuple[str, ...] = ()


def choose_source(
    settings: Settings, file: FileDiscoveryParameters | None, environment: Mapping[str, str]
) -> WorkerSource:
    """Raises ConfigError if flags and configuration exclude each other, SourceError for an unsupported source."""
    pool, selector = _pool_flags(settings), _selector_flags(settings)
    if file is not None:
        if settings.discovery is not None:
            problem = f"{file.path} and {settings.discovery} both name a source of workers; give one of them"
            raise ConfigError("dataLayer.discovery", problem)
        # the Go picker requires a pool or a selector beside a file, and uses neither
        return WorkerSource(
            file=file, ignored_flags=(*(name for name in pool if name != "--pool-name"), *selector)
        )
    if selector:
        raise SourceError(f"{' and '.join(selector)}: Pods cannot be selected by labels; {_REMEDY}")
    url = settings.discovery or environment.get("ADSUM_DISCOVERY") or None
    if url is None and pool:
        raise SourceError(f"{' and '.join(pool)}: InferencePools are not supported; {_REMEDY}")
    if url is None or not settings.pool_namespace:
        return WorkerSource(
            settings.discovery, ignored_flags=("--pool-group",) if settings.pool_group else ()
        )
    return _in_namespace(url, settings)


def asks_for_tokens(settings: Settings, source: WorkerSource) -> bool:
    """Whether the metrics port serves only clients whose token the API server accepts.

    Without the flag: if the Go picker's flags name a pool or a selector. There its default is true, so that who changes the
    image does not open the page; elsewhere there may be no API server.
    """
    if settings.metrics_endpoint_auth is not None:
        return settings.metrics_endpoint_auth
    if settings.discovery is not None or source.url is None:
        return False
    return not {"pool", "selector"}.isdisjoint(parse_qs(urlsplit(source.url).query))


def _in_namespace(url: str, settings: Settings) -> WorkerSource:
    """Apply `--pool-namespace`: a kubernetes:// URL without a namespace gets it; other URLs ignore it."""
    ignored = ("--pool-group",) if settings.pool_group else ()
    scheme, separator, rest = url.partition("://")
    if scheme.lower() != "kubernetes" or not separator:
        return WorkerSource(url, ignored_flags=("--pool-namespace", *ignored))
    named = urlsplit(url).netloc
    if named and named != settings.pool_namespace:
        raise SourceError(
            f"--pool-namespace {settings.pool_namespace} and {url} name different namespaces; give one of them"
        )
    return WorkerSource(
        url if named else f"{scheme}://{settings.pool_namespace}{rest}", ignored_flags=ignored
    )


def _pool_flags(settings: Settings) -> tuple[str, ...]:
    given = {
        "--pool-name": settings.pool_name,
        "--pool-namespace": settings.pool_namespace,
        "--pool-group": settings.pool_group,
    }
    return tuple(name for name, value in given.items() if value)


def _selector_flags(settings: Settings) -> tuple[str, ...]:
    given = {
        "--endpoint-selector": settings.endpoint_selector,
        "--endpoint-target-ports": settings.endpoint_target_ports,
    }
    return tuple(name for name, value in given.items() if value)
