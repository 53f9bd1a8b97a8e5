"""Opens the source that a `kubernetes://` URL names; it connects when it is first used."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from discovery.instance import check_namespace
from discovery.kubernetes.api.credentials import Cluster, load_cluster
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.api.transport import ClusterTransport
from discovery.kubernetes.pods.selection import (
    POOL_GROUP,
    PodTargets,
    PoolReference,
    check_label_selector,
    check_ports,
)
from discovery.kubernetes.pods.source import PodsSource
from discovery.kubernetes.slices.source import KubernetesSource, LabelSelection, Selection, ServiceSelection
from discovery.source import Candidate, ComponentKey, Report, Source

EXPECTED: Final = (
    "kubernetes://[namespace][?service={template} | labels=true][&port=http] for workers that register themselves, "
    "?pool=NAME[&group=GROUP] or ?selector=app%3Dvllm&ports=8000,8001 for Pods; each with "
    "[&grace=0.5][&context=NAME][&kubeconfig=PATH][&server=http://host:port]"
)
_OF_SLICES: Final = frozenset(["service", "labels", "port", "assert_service"])
PODS_PARAMETERS: Final = frozenset(["selector", "ports", "pool", "group"])
"""With these a URL selects Pods, and no Service is needed."""
_PARAMETERS: Final = _OF_SLICES | PODS_PARAMETERS | {"grace", "context", "kubeconfig", "server"}


class DeferredSource(Source):
    """Makes its source on first use, once for all keys: that needs the network or slow imports.

    A suspected instance is left to the API server: it changes by itself when the readiness probe of its Pod fails.
    """

    def __init__(self, make: Callable[[], Awaitable[Source]], *, needs_documents: bool = True) -> None:
        self.needs_documents = needs_documents
        self._make = make
        self._source: Source | None = None
        self._lock = asyncio.Lock()

    async def run(self, key: ComponentKey, report: Report) -> None:
        report.degraded("not connected to the Kubernetes API yet: loading the configuration")
        await (await self._get()).run(key, report)

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        return await (await self._get()).explain(key)

    async def components(self) -> list[ComponentKey]:
        return await (await self._get()).components()

    async def aclose(self) -> None:
        if self._source is not None:
            await self._source.aclose()

    async def _get(self) -> Source:
        async with self._lock:
            if self._source is None:
                self._source = await self._make()
            return self._source


def open_kubernetes(url: str) -> Source:
    """ValueError for a URL that is not of the form `EXPECTED`."""
    parts = urlsplit(url)
    options = parse_options(parts, url)
    namespace = _namespace(parts, url)
    grace = _grace(options.get("grace", "0.5"), url)
    if (pods := _pods(options, url)) is not None:

        async def make_of_pods() -> Source:
            cluster = await find_cluster(options)
            return PodsSource(ClusterTransport(cluster), namespace or cluster.namespace, pods, grace=grace)

        return DeferredSource(make_of_pods, needs_documents=PodsSource.needs_documents)
    selection = _selection(options, url)

    async def make() -> Source:
        cluster = await find_cluster(options)
        return KubernetesSource(
            ClusterTransport(cluster),
            namespace or cluster.namespace,
            selection,
            port_name=options.get("port", "http"),
            grace=grace,
        )

    return DeferredSource(make)


def parse_options(parts: SplitResult, url: str) -> dict[str, str]:
    """The query of a `kubernetes://` URL. ValueError for an unknown or repeated parameter."""
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if unknown := sorted(options.keys() - _PARAMETERS):
        raise ValueError(f"{url!r}: unknown parameter {', '.join(unknown)}; expected {EXPECTED}")
    if len(options) < len(pairs):
        raise ValueError(f"{url!r}: a parameter appears twice; expected {EXPECTED}")
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError(f"{url!r} has a path; expected {EXPECTED}")
    if "server" in options and not options["server"].startswith(("http://", "https://")):
        raise ValueError(f"{url!r}: server={options['server']!r} is not a URL; expected http://host:port")
    if "server" in options and options.keys() & {"context", "kubeconfig"}:
        raise ValueError(
            f"{url!r}: server= cannot be combined with context= or kubeconfig=, since it uses no credentials"
        )
    return options


async def find_cluster(options: Mapping[str, str], timings: Timings | None = None) -> Cluster:
    """The cluster that the options of a URL name. DiscoveryError if there is none."""
    if server := options.get("server"):
        return Cluster(server)
    load = partial(load_cluster, context=options.get("context"), kubeconfig=options.get("kubeconfig"))
    return await load(timings=timings)


def _namespace(parts: SplitResult, url: str) -> str | None:
    if not parts.netloc:
        return None
    try:
        return check_namespace(parts.netloc)
    except ValueError as error:
        raise ValueError(f"{url!r}: the Kubernetes {error}; expected {EXPECTED}") from error


def _pods(options: Mapping[str, str], url: str) -> PodTargets | PoolReference | None:
    """None: the URL is about slices. ValueError for parameters that exclude each other, or that make no sense."""
    given = options.keys() & PODS_PARAMETERS
    if not given:
        return None
    if others := sorted(options.keys() & _OF_SLICES):
        raise ValueError(
            f"{url!r}: {', '.join(sorted(given))} and {', '.join(others)} exclude each other: Pods are selected, "
            "not a Service"
        )
    try:
        if "pool" in options and not options.keys() & {"selector", "ports"}:
            return PoolReference(options["pool"], options.get("group") or POOL_GROUP)
        if given == {"selector", "ports"}:
            # bounded: the operator's URL
            ports = check_ports(map(_port, options["ports"].split(",")))
            return PodTargets(check_label_selector(options["selector"]), ports)
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from error
    raise ValueError(
        f"{url!r}: expected pool=NAME, with group= if it is another one than {POOL_GROUP}; or both selector= and ports="
    )


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 5:
        return int(text)
    raise ValueError(f"target port {text[:20]!r}; expected 1 to 65535")


def _selection(options: Mapping[str, str], url: str) -> Selection:
    if "service" in options and "labels" in options:
        raise ValueError(f"{url!r}: service= and labels= exclude each other")
    if options.get("labels", "true") not in ("true", "false"):
        raise ValueError(f"{url!r}: labels={options['labels']!r}; expected true or false")
    if options.get("labels") == "true":
        return LabelSelection()
    return ServiceSelection(options["service"]) if "service" in options else ServiceSelection()


def _grace(text: str, url: str) -> float:
    try:
        grace = float(text)
    except ValueError:
        grace = -1.0
    if not 0 <= grace <= 60:
        raise ValueError(f"{url!r}: grace={text!r}; expected seconds from 0 to 60")
    return grace
