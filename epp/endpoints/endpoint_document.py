"""Makes an Endpoint of an instance and its metadata document."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from adsum.quoting import quoted
from discovery import Instance
from discovery.metadata.document import MOST_PORT, MOST_RANKS, may_name, read_port
from epp.endpoints.endpoint import Endpoint, KvEventPorts
from epp.endpoints.served_model import ServedModel

_MOST_TOPIC: Final = 256
ENGINE_LABELS: Final = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDefaults:
    """Values for workers whose metadata has none. `metrics_port` None: the serving port.

    `serving_port_name`: selects the serving port, if discovery knows the worker's ports by name.
    """

    serving_port_name: str | None = None
    metrics_port: int | None = None
    metrics_path: str = "/metrics"
    scheme: str = "http"
    engine: str | None = None
    engine_labels: tuple[str, ...] = ENGINE_LABELS


def read_endpoint(
    instance: Instance,
    document: Mapping[str, Any],
    defaults: EndpointDefaults,
    listed_models: tuple[ServedModel, ...] = (),
) -> Endpoint:
    """The endpoint of an instance with this metadata; values of the wrong type count as absent.

    The address comes from the instance only. A worker may name its ports but no host: otherwise any worker could send
    requests and scrapes to a host of its choice.
    """
    transport = _section(document, "transport")
    http = _mapping(transport.get("http"))
    model = _section(document, "model")
    labels = _texts(_mapping(document.get("labels"))) | dict(instance.labels)
    named = instance.ports.get(defaults.serving_port_name or "")
    # the target port of a pool is the rank's own: one document may describe all ranks of a Pod
    ignored: list[str] = []
    declared = _port(instance, http, "http.port", ignored) if instance.rank is None else None
    port = declared or named or instance.port
    return Endpoint(
        id=instance.id,
        incarnation=instance.incarnation,
        address=instance.address,
        port=port,
        metrics_port=_port(instance, http, "http.metrics_port", ignored) or defaults.metrics_port or port,
        metrics_path=_path(http.get("metrics_path")) or defaults.metrics_path,
        scheme=defaults.scheme,
        engine=_engine(http.get("engine"), labels, defaults),
        models=_models(model),
        listed_models=listed_models,
        labels=MappingProxyType(labels),
        zone=instance.zone,
        node=instance.node,
        reachable=instance.reachable,
        namespace=instance.namespace,
        rank=instance.rank,
        kv_events=_kv_events(instance, _mapping(transport.get("kv_events")), ignored),
        ignored=tuple(ignored),
    )


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section, under its name or capitalised: workers send both `model` and `Model`."""
    return _mapping(document.get(name)) or _mapping(document.get(name.capitalize()))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _kv_events(instance: Instance, given: Mapping[str, Any], ignored: list[str]) -> KvEventPorts | None:
    """One document may describe all ranks of a Pod: then the ports are those of its first rank."""
    port = _port(instance, given, "kv_events.port", ignored)
    if port is None:
        return None
    replay = _port(instance, given, "kv_events.replay_port", ignored)
    topic, ranks = given.get("topic"), given.get("ranks")
    if not isinstance(topic, str) or len(topic) > _MOST_TOPIC:
        topic = ""
    # as for a port, True is no number
    if instance.rank is not None or type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        ranks = 1
    first = instance.rank or 0
    bases = (port,) if replay is None else (port, replay)
    named = [base + rank for base in bases for rank in range(first, first + ranks)]
    wrong = [one for one in named if one > MOST_PORT or not may_name(instance, one)]
    if wrong:
        ignored.append(
            f"metadata transport.kv_events names the port {wrong[0]} for a rank, expected one from 1024 to {MOST_PORT}; ignored"
        )
        return None
    return KvEventPorts(port + first, None if replay is None else replay + first, topic, ranks)


def _port(instance: Instance, given: Mapping[str, Any], name: str, ignored: list[str]) -> int | None:
    """`name`: with the section that is given."""
    value = given.get(name.rpartition(".")[2])
    port = read_port(value)
    if port is not None and may_name(instance, port):
        return port
    if port is not None:
        ignored.append(
            f"metadata transport.{name} is {port}, below 1024 and not the registered port; ignored: set a port from "
            "1024 on, or register with this one"
        )
    elif value is not None:
        shown = quoted(repr(value))
        ignored.append(f"metadata transport.{name} is {shown}, expected a port, 1 to 65535; ignored")
    return None


def _path(value: object) -> str | None:
    """The value if it is a path in printable ASCII: anything else could change the host of the URL."""
    fits = isinstance(value, str) and value.startswith("/") and value.isascii() and value.isprintable()
    return str(value) if fits else None


def _models(model: Mapping[str, Any]) -> frozenset[str]:
    lists = [names for key in ("adapters", "aliases") if isinstance(names := model.get(key), list | tuple)]
    names = [model.get("name"), *itertools.chain.from_iterable(lists)]
    return frozenset(name for name in names if isinstance(name, str) and name)


def _engine(named: object, labels: Mapping[str, str], defaults: EndpointDefaults) -> str | None:
    if isinstance(named, str) and named:
        return named
    return next((labels[name] for name in defaults.engine_labels if labels.get(name)), defaults.engine)
