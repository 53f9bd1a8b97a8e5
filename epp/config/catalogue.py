"""The built-in plugin types. Each is declared beside its algorithm, in any module of `epp/scheduling` or `epp/flow_control`.

The error for an unknown type stands here too: for a type of the Go picker that is not supported it names what a file can use
instead. Their names: llm-d-router, cmd/epp/runner/runner.go, August 2026.
"""

import difflib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

from adsum.config.problems import did_you_mean
from epp import flow_control, scheduling
from epp.config import data_layer
from epp.plugins.declaration import PluginDeclaration, Role


def _modules() -> Iterator[ModuleType]:
    # a plugin that needs a costly library loads it when it is built, so importing all modules costs little
    yield data_layer
    for package in (flow_control, scheduling):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield import_module(found.name)


def _declared(module: ModuleType) -> Iterator[PluginDeclaration]:
    for value in vars(module).values():
        several = value if isinstance(value, tuple) else (value,)
        yield from (one for one in several if isinstance(one, PluginDeclaration))


def by_type(modules: Iterable[ModuleType]) -> dict[str, PluginDeclaration]:
    found: dict[str, PluginDeclaration] = {}
    for module in modules:
        for declared in _declared(module):
            if found.setdefault(declared.type, declared) is not declared:
                raise ValueError(
                    f"{module.__name__} declares {declared.type!r}, which another module declares"
                )
    return found


MODULES: Final = tuple(module for module in _modules() if any(_declared(module)))
"""Each declares plugin types."""
PLUGINS: Final[Mapping[str, PluginDeclaration]] = by_type(MODULES)
DEFAULTS: Final[Mapping[Role, str]] = {one.role: one.type for one in PLUGINS.values() if one.is_default}
"""By role the plugin type that a file gets if it names none."""

_PREFIX: Final = (
    "use prefix-cache-scorer without prefixMatchInfoProducerName: it estimates caches from what it routed"
)
_LATENCY: Final = (
    "use least-cost-scorer, which foresees first tokens and needs no predictor; nothing foresees later tokens"
)
_PARSER: Final = "use openai-parser, or passthrough-parser for bodies that must not be parsed"
_ONE_PAGE: Final = "each worker has one page: use customMetrics of core-metrics-extractor for a number that the model server publishes"
_CLUSTERS: Final = "use {}: there is one cluster"

_BY_ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    _PREFIX: ("precise-prefix-cache-scorer", "p2p-source-producer"),
    _LATENCY: ("latency-scorer", "predicted-latency-producer", "slo-headroom-tier-filter"),
    "it is part of the Go picker's tests alone; use single-profile-handler": ("test-profile-handler",),
    _PARSER: ("sglanghttp-parser", "vertexai-parser", "vllmgrpc-parser"),
    _ONE_PAGE: ("dcgm-data-source", "dcgm-extractor"),
    "leave it out: answers are not parsed": ("request-attribute-reporter",),
    "leave it out: images are not parsed": ("mm-embeddings-cache-producer", "mm-embeddings-cache-scorer"),
}

_MULTICLUSTER: Final[Mapping[str, str]] = {
    "multicluster-approx-prefix-cache-producer": "approx-prefix-cache-producer",
    "multicluster-file-discovery": "file-discovery",
    "multicluster-kv-cache-utilization-scorer": "kv-cache-utilization-scorer",
    "multicluster-metrics-data-source": "metrics-data-source",
    "multicluster-metrics-extractor": "core-metrics-extractor",
    "multicluster-prefix-cache-scorer": "prefix-cache-scorer",
    "multicluster-queue-scorer": "queue-scorer",
    "multicluster-session-affinity-filter": "session-affinity-filter",
}

GO_ONLY: Final[Mapping[str, str]] = {
    name: advice for advice, names in _BY_ADVICE.items() for name in names
} | {name: _CLUSTERS.format(one) for name, one in _MULTICLUSTER.items()}
"""The remedy for each type, for the error when a file names one."""


def unknown_type(name: str, installed: Iterable[str]) -> str:
    """The problem of a type that is not there. `installed`: those that packages declare."""
    if (instead := GO_ONLY.get(name)) is not None:
        return f"{name!r} is a plugin of the Go picker that adsum does not have; {instead}"
    known = (*PLUGINS, *installed)
    near = difflib.get_close_matches(name[:100], (*known, *GO_ONLY), n=1)
    problem = f"{name[:60]!r} is not a plugin type; {did_you_mean(name, near or known)}"
    if near and near[0] in GO_ONLY:
        return f"{problem} That is a plugin of the Go picker that adsum does not have; {GO_ONLY[near[0]]}"
    return problem
