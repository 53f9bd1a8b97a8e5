"""Where the workers are: what flags, environment and configuration say of it, weighed once (pure).

The Go picker finds Pods, by an InferencePool or by a label selector. That is no source of ours yet: its flags stop the
start where nothing else says where the workers are, since a picker of an empty pool looks like one that works.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from epp.config.parameters import FileDiscoveryParameters
from epp.config.settings import Settings
from runtime.config.problems import ConfigError

_INSTEAD: Final = (
    "say where the workers are: --discovery kubernetes://NAMESPACE with --namespace and --component for workers that "
    "announce themselves (docs/kubernetes.md), --endpoint HOST:PORT or the plugin file-discovery for listed ones"
)


class SourceError(ValueError):
    """The flags name workers that cannot be found; the text says what to use."""


@dataclass(frozen=True, slots=True)
class WorkerSource:
    """A discovery URL, None for the default one, or the file of the plugin `file-discovery`.

    `idle_flags`: those given that had no say.
    """

    url: str | None = None
    file: FileDiscoveryParameters | None = None
    idle_flags: tuple[str, ...] = ()


def choose(
    settings: Settings, file: FileDiscoveryParameters | None, environment: Mapping[str, str]
) -> WorkerSource:
    """Raises ConfigError where flags and configuration exclude each other, SourceError for what cannot be had."""
    pool, selector = _pool_flags(settings), _selector_flags(settings)
    if file is not None:
        if settings.discovery is not None:
            problem = f"{file.path} and {settings.discovery} both say where the workers are; give one of them"
            raise ConfigError("dataLayer.discovery", problem)
        # the Go picker wants a pool or a selector beside a file, and uses neither
        return WorkerSource(
            file=file, idle_flags=(*(name for name in pool if name != "--pool-name"), *selector)
        )
    if selector:
        raise SourceError(f"{' and '.join(selector)}: Pods are not found by their labels here; {_INSTEAD}")
    url = settings.discovery or environment.get("ADSUM_DISCOVERY") or None
    if url is None and pool:
        raise SourceError(
            f"{' and '.join(pool)}: the Pods of an InferencePool are not found here; {_INSTEAD}"
        )
    if url is None or not settings.pool_namespace:
        return WorkerSource(settings.discovery, idle_flags=("--pool-group",) if settings.pool_group else ())
    return _in_namespace(url, settings)


def _in_namespace(url: str, settings: Settings) -> WorkerSource:
    """`--pool-namespace` beside a discovery URL: of a cluster it names the namespace, elsewhere it has no say."""
    idle = ("--pool-group",) if settings.pool_group else ()
    scheme, separator, rest = url.partition("://")
    if scheme.lower() != "kubernetes" or not separator:
        return WorkerSource(url, idle_flags=("--pool-namespace", *idle))
    named = urlsplit(url).netloc
    if named and named != settings.pool_namespace:
        raise SourceError(
            f"--pool-namespace {settings.pool_namespace} and {url} name different namespaces; give one of them"
        )
    return WorkerSource(url if named else f"{scheme}://{settings.pool_namespace}{rest}", idle_flags=idle)


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
