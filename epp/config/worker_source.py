"""Chooses the source of workers from flags, environment and configuration (pure).

Flags that name workers have their effect or stop the start: a picker with an empty pool would look healthy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from adsum.config.problems import ConfigError
from adsum.quoting import quoted
from epp.config.data_layer import FileDiscoveryParameters
from epp.config.settings import Settings

DEFAULT_POOL_NAMESPACE: Final = "default"
"""As in the Go picker, if neither `--pool-namespace` nor `$NAMESPACE` names one."""
MAX_TARGET_PORTS: Final = 8
"""InferencePool v1: `spec.targetPorts` has at most so many."""


class SourceError(ValueError):
    """The flags that name workers contradict each other or are not complete; the text says what to do."""


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
    """Raises ConfigError if flags and configuration exclude each other, SourceError if flags do."""
    if settings.pool_name and settings.endpoint_selector:
        raise SourceError(
            "--pool-name and --endpoint-selector exclude each other: an InferencePool has a selector of its own; "
            "give one of them"
        )
    if file is not None:
        return _listed(settings, file)
    if settings.endpoint_selector:
        return _selected(settings, environment)
    # beside a pool they have no effect, as in the Go picker: the InferencePool names its ports
    ignored: tuple[str, ...] = ("--endpoint-target-ports",) if settings.endpoint_target_ports else ()
    if ignored and not settings.pool_name:
        raise SourceError(
            "--endpoint-target-ports needs --endpoint-selector, which says whose ports these are"
        )
    url = settings.discovery or environment.get("ADSUM_DISCOVERY") or None
    if url is None and _pool_flags(settings):
        return WorkerSource(_pool_url(settings, environment), ignored_flags=ignored)
    if settings.pool_group:
        ignored = ("--pool-group", *ignored)
    if url is None or not settings.pool_namespace:
        return WorkerSource(settings.discovery, ignored_flags=ignored)
    return _in_namespace(url, settings.pool_namespace, ignored)


def metrics_pool_name(settings: Settings, environment: Mapping[str, str]) -> str:
    """The pool's name on the metrics page. For a selector it is the picker's Deployment, as in the Go picker."""
    if settings.pool_name:
        return settings.pool_name
    if settings.endpoint_selector:
        replica_set = environment.get("POD_NAME", "").rpartition("-")[0]
        return replica_set.rpartition("-")[0] or settings.component
    return settings.component


def _listed(settings: Settings, file: FileDiscoveryParameters) -> WorkerSource:
    """The Go picker requires a pool or a selector beside a file, and uses neither."""
    if settings.discovery is not None:
        problem = f"{file.path} and {settings.discovery} both name a source of workers; give one of them"
        raise ConfigError("dataLayer.discovery", problem)
    unused = (name for name in _pool_flags(settings) if name != "--pool-name")
    return WorkerSource(file=file, ignored_flags=(*unused, *_selector_flags(settings)))


def _pool_url(settings: Settings, environment: Mapping[str, str]) -> str:
    if not settings.pool_name:
        given = " and ".join(_pool_flags(settings))
        raise SourceError(
            f"{given}: which InferencePool? give --pool-name NAME, or --endpoint-selector for Pods"
        )
    query = {"pool": settings.pool_name}
    if settings.pool_group:
        query["group"] = settings.pool_group
    return f"kubernetes://{_namespace(settings, environment)}?{urlencode(query)}"


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


def _selected(settings: Settings, environment: Mapping[str, str]) -> WorkerSource:
    if settings.discovery is not None:
        raise SourceError(
            f"--endpoint-selector and {settings.discovery} both name a source of workers; give one of them"
        )
    ports = ",".join(map(str, _target_ports(settings.endpoint_target_ports)))
    query = urlencode({"selector": settings.endpoint_selector, "ports": ports})
    ignored = ("--pool-group",) if settings.pool_group else ()
    return WorkerSource(f"kubernetes://{_namespace(settings, environment)}?{query}", ignored_flags=ignored)


def _target_ports(texts: Sequence[str]) -> list[int]:
    """Each port once, in the order given; raises SourceError."""
    if not texts:
        raise SourceError(
            "--endpoint-selector needs --endpoint-target-ports, on which the selected Pods serve: "
            "--endpoint-target-ports 8000, or 8000,8001 for two ranks"
        )
    ports: dict[int, None] = {}
    # bounded: the operator's flag
    for text in ",".join(texts).split(","):
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
            raise SourceError(
                f"--endpoint-target-ports: {quoted(text)} is not a port; expected numbers from 1 to 65535 "
                "with commas, without spaces"
            )
        ports[int(text)] = None
    if len(ports) > MAX_TARGET_PORTS:
        raise SourceError(f"--endpoint-target-ports: {len(ports)} ports; expected at most {MAX_TARGET_PORTS}")
    return list(ports)


def _namespace(settings: Settings, environment: Mapping[str, str]) -> str:
    return settings.pool_namespace or environment.get("NAMESPACE") or DEFAULT_POOL_NAMESPACE


def _in_namespace(url: str, namespace: str, ignored: tuple[str, ...]) -> WorkerSource:
    """Apply `--pool-namespace`: a kubernetes:// URL without a namespace gets it; other URLs ignore it."""
    scheme, separator, rest = url.partition("://")
    if scheme.lower() != "kubernetes" or not separator:
        return WorkerSource(url, ignored_flags=("--pool-namespace", *ignored))
    named = urlsplit(url).netloc
    if named and named != namespace:
        raise SourceError(
            f"--pool-namespace {namespace} and {url} name different namespaces; give one of them"
        )
    return WorkerSource(url if named else f"{scheme}://{namespace}{rest}", ignored_flags=ignored)


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
