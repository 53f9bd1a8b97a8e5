"""Folds what discovery tells into endpoints, and keeps the numbers that belong to each of them."""

import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from discovery import (
    Instance,
    InstanceAddedEvent,
    InstanceEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    MetadataUnavailableError,
)
from epp.endpoint import NO_ADAPTERS, NO_NUMBERS, Adapters, Column, Endpoint, EndpointPool, Floats, Mask
from epp.metrics_page import Load

logger = logging.getLogger(__name__)

Key = tuple[str, str]

ENGINE_LABELS: Final = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDefaults:
    """What holds for workers that do not say otherwise. `metrics_port` None: the port that serves."""

    metrics_port: int | None = None
    metrics_path: str = "/metrics"
    scheme: str = "http"
    engine: str | None = None
    engine_labels: tuple[str, ...] = ENGINE_LABELS


class Datastore:
    """All endpoints of one picker. Everything happens on one event loop: readers never see half a change."""

    def __init__(self, defaults: EndpointDefaults | None = None) -> None:
        self.on_change: list[Callable[[], None]] = []
        """Called after endpoints came, went or changed."""
        self.on_reset: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint whose process is gone or another one: what was known of its cache is void."""
        self._defaults = defaults or EndpointDefaults()
        self._endpoints: dict[Key, Endpoint] = {}
        self._rows: dict[Key, int] = {}
        self._epochs: dict[Key, str] = {}
        self._documents: dict[Key, Mapping[str, Any]] = {}
        self._inflight: Counter[Key] = Counter()
        self._numbers: Floats = NO_NUMBERS[:, :0].copy()
        self._adapters: list[Adapters] = []
        self._roster: _Roster | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them, in the order of a pool's columns."""
        return self._known_roster().endpoints

    def pool(self, now: float) -> EndpointPool:
        """All endpoints with their numbers; `now` is what their age is measured by."""
        return EndpointPool(self.endpoints, self._numbers, self._adapters, now)

    def serving(self, model: str) -> Mask | None:
        """Where a model or adapter is served: by those that declare it, and those that declare nothing.

        Where nobody declares it, by those whose metrics page shows it as an adapter. None: no endpoint declares
        anything, so that every one may serve it.
        """
        roster = self._known_roster()
        if not roster.serving:
            return None
        mask = roster.serving.get(model, roster.undeclared)
        if mask.any():
            return mask
        return np.array([model in a.active or model in a.waiting for a in self._adapters], dtype=np.bool_)

    async def follow(self, events: AsyncIterable[InstanceEvent]) -> None:
        """Fold events until the stream ends; raises what the stream raises."""
        async for event in events:
            logger.info("%s", _told(event))
            document: Mapping[str, Any] | None = None
            if not isinstance(event, InstanceRemovedEvent):
                try:
                    document = await event.instance.metadata()
                except MetadataUnavailableError as error:
                    logger.warning("%s; what was known of it is kept", error)
            self.apply(event, document)

    def apply(self, event: InstanceEvent, document: Mapping[str, Any] | None = None) -> None:
        """Fold one event; `document` is the instance's metadata, None when it is not known (any more)."""
        if isinstance(event, InstanceRemovedEvent):
            self._remove(event)
        else:
            self._put(event.instance, document)
        self._roster = None
        for changed in self.on_change:
            changed()

    def observe(self, endpoint: Endpoint, load: Load, now: float, period: float = 0.0) -> None:
        """Write down one look at a worker's metrics; what its page does not say stays as it was.

        `period`: seconds until the next look may be in.
        """
        row = self._rows.get(endpoint.key)
        if row is None:
            return
        values = (load.waiting, load.running, load.kv_usage, load.max_lora)
        columns = (Column.WAITING, Column.RUNNING, Column.KV_USAGE, Column.MAX_LORA)
        for column, value in zip(columns, values, strict=True):
            if value is not None:
                self._numbers[column, row] = value
        if load.adapters is not None:
            self._adapters[row] = load.adapters
        self._numbers[[Column.SCRAPED_AT, Column.PERIOD], row] = now, period

    def reserve(self, endpoint: Endpoint) -> None:
        """One more request in flight there. The count belongs to the incarnation, whatever its metadata say."""
        self._count(endpoint, 1)

    def release(self, endpoint: Endpoint) -> None:
        """One request less."""
        self._count(endpoint, -1)

    def _count(self, endpoint: Endpoint, difference: int) -> None:
        key = endpoint.key
        self._inflight[key] += difference
        if key in self._rows:
            self._numbers[Column.INFLIGHT, self._rows[key]] = self._inflight[key]
        if self._inflight[key] <= 0:
            del self._inflight[key]

    def _put(self, instance: Instance, document: Mapping[str, Any] | None) -> None:
        key = (instance.id, instance.incarnation)
        if document is not None:
            self._documents[key] = document
        endpoint = read_endpoint(instance, self._documents.get(key, {}), self._defaults)
        if key not in self._endpoints:
            self._rows[key] = len(self._rows)
            self._numbers = np.hstack((self._numbers, NO_NUMBERS))
            self._numbers[Column.INFLIGHT, -1] = self._inflight.get(key, 0)
            self._adapters.append(NO_ADAPTERS)
        self._endpoints[key] = endpoint
        self._numbers[Column.REACHABLE, self._rows[key]] = endpoint.reachable
        self._note_epoch(endpoint, instance.revision)

    def _note_epoch(self, endpoint: Endpoint, revision: str | None) -> None:
        parts = (revision or "").rsplit(".", 2)
        epoch = parts[1] if len(parts) == 3 else None
        before = self._epochs.get(endpoint.key)
        if epoch is None:
            return
        self._epochs[endpoint.key] = epoch
        if before not in (None, epoch):
            row = self._rows[endpoint.key]
            kept = self._numbers[[Column.INFLIGHT, Column.REACHABLE], row]
            self._numbers[:, row] = NO_NUMBERS[:, 0]
            self._numbers[[Column.INFLIGHT, Column.REACHABLE], row] = kept
            self._adapters[row] = NO_ADAPTERS
            self._reset(endpoint)

    def _remove(self, event: InstanceRemovedEvent) -> None:
        key = (event.instance.id, event.instance.incarnation)
        endpoint = self._endpoints.pop(key, None)
        if endpoint is None:
            return
        row = self._rows[key]
        self._numbers = np.delete(self._numbers, row, axis=1)
        del self._adapters[row]
        self._rows = {key: row for row, key in enumerate(self._endpoints)}
        self._documents.pop(key, None)
        self._epochs.pop(key, None)
        if event.reason in ("deleted", "replaced"):
            self._reset(endpoint)

    def _reset(self, endpoint: Endpoint) -> None:
        for hook in self.on_reset:
            hook(endpoint)

    def _known_roster(self) -> "_Roster":
        if self._roster is None:
            self._roster = _Roster.of(tuple(self._endpoints.values()))
        return self._roster


@dataclass(frozen=True, slots=True)
class _Roster:
    """What follows from the endpoints alone: who serves what. `undeclared`: those that declare nothing."""

    endpoints: tuple[Endpoint, ...]
    undeclared: Mask
    serving: Mapping[str, Mask]

    @classmethod
    def of(cls, endpoints: tuple[Endpoint, ...]) -> "_Roster":
        undeclared = np.array([not endpoint.models for endpoint in endpoints], dtype=np.bool_)
        serving: dict[str, Mask] = {}
        for row, endpoint in enumerate(endpoints):
            for model in endpoint.models:
                serving.setdefault(model, undeclared.copy())[row] = True
        return cls(endpoints, undeclared, serving)


def _told(event: InstanceEvent) -> str:
    """One line for the log."""
    who = f"{event.instance.id} ({event.instance.authority})"
    match event:
        case InstanceRemovedEvent(_, reason):
            return f"{who} is gone: {reason}"
        case InstanceAddedEvent():
            return f"{who} is there"
        case InstanceUpdatedEvent(old, new) if old.reachable != new.reachable:
            return f"{who} {'answers again' if new.reachable else 'is avoided: it does not answer or is not ready'}"
    return f"{who} changed"


def read_endpoint(instance: Instance, document: Mapping[str, Any], defaults: EndpointDefaults) -> Endpoint:
    """The endpoint of an instance whose metadata is `document`; values of the wrong kind count as absent.

    The address comes from the instance only: a worker can name its ports, not somebody else's host.
    """
    http = _mapping(_section(document, "transport").get("http"))
    model = _section(document, "model")
    labels = _texts(_mapping(document.get("labels"))) | dict(instance.labels)
    port = _port(instance, http, "port") or instance.port
    return Endpoint(
        id=instance.id,
        incarnation=instance.incarnation,
        address=instance.address,
        port=port,
        metrics_port=_port(instance, http, "metrics_port") or defaults.metrics_port or port,
        metrics_path=_path(http.get("metrics_path")) or defaults.metrics_path,
        scheme=defaults.scheme,
        engine=_engine(http.get("engine"), labels, defaults),
        models=_models(model),
        labels=MappingProxyType(labels),
        zone=instance.zone,
        node=instance.node,
        reachable=instance.reachable,
    )


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """`model` and `Model` are read alike (seed 002 uses both)."""
    return _mapping(document.get(name)) or _mapping(document.get(name.capitalize()))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _port(instance: Instance, http: Mapping[str, Any], name: str) -> int | None:
    value = http.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    if value is not None:
        logger.warning(
            "%s: metadata transport.http.%s is no port from 1 to 65535; ignored", instance.id, name
        )
    return None


def _path(value: object) -> str | None:
    """A path on the worker itself, in printable ASCII."""
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
