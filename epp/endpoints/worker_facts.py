"""All that discovery and scrapes say of workers, as facts that another process of the same picker can apply to its datastore. Pure.

A fact names a method of `Datastore` and the worker. The latest fact of each kind is kept for each worker, so that a process
that comes later is told all, and one that takes over has it all.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final, TypeAlias

import msgspec

from discovery import Instance, InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from discovery.instance import InstanceStatus
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Adapters, Endpoint, Key
from epp.endpoints.load import Load
from epp.endpoints.served_model import ServedModel
from epp.endpoints.worker_metrics import WorkerMetric

Fact: TypeAlias = tuple[str, Key, tuple[Any, ...]]
"""The method, the worker, and what the method is given beside it."""
_MEMBER, _REMOVED, _LOAD, _EXPECTED, _LOST = "apply", "remove", "observe", "expect_page", "set_lost"


_APPLIED: Final[Mapping[str, Callable[[Datastore, Endpoint, tuple[Any, ...]], object]]] = {
    "observe": lambda store, endpoint, given: store.observe(endpoint, *given),
    "expect_page": lambda store, endpoint, given: store.expect_page(endpoint, *given),
    "record_failed_scrape": lambda store, endpoint, given: store.record_failed_scrape(
        endpoint, has_page=given[0]
    ),
    "set_lost": lambda store, endpoint, given: store.set_lost(endpoint, lost=given[0]),
    "set_cache_tokens": lambda store, endpoint, given: store.set_cache_tokens(endpoint, *given),
    "set_listed_models": lambda store, endpoint, given: store.set_listed_models(endpoint, *given),
    "process_replaced": lambda store, endpoint, given: store.process_replaced(endpoint),
}


class WorkerFacts:
    """Hears what `datastore` is told, from any side. `tell`: called with each fact while this process is the one that finds out.

    `on_event`: called with each worker that another process says comes, changes or goes.
    """

    def __init__(
        self, datastore: Datastore, on_event: Sequence[Callable[[InstanceEvent], None]] = ()
    ) -> None:
        self._datastore = datastore
        self._on_event = on_event
        # bounded: by the workers, a fact of each kind
        self._latest: dict[Key, dict[str, Fact]] = {}
        # bounded: by the workers
        self._instances: dict[Key, Instance] = {}
        # bounded: the same
        self._expected: dict[Key, float] = {}
        self.tell: Callable[[Fact], None] | None = None
        datastore.on_fact = self._hear

    def _hear(self, method: str, key: Key, given: tuple[Any, ...]) -> None:
        if method == _EXPECTED:
            # told once it is overdue: else a process that tells no more would make all workers late
            self._expected[key] = given[0]
            return
        if method == _LOAD:
            self._expected.pop(key, None)
        fact = method, key, given
        if method == _MEMBER:
            event, document = given
            if isinstance(event, InstanceRemovedEvent):
                self._forget(key)
                fact = _REMOVED, key, (event.reason,)
            else:
                instance = self._instances[key] = replace(event.instance, reader=None)
                before = self._latest.get(key, {}).get(_MEMBER)
                if document is None and before is not None:
                    document = before[2][1]
                fact = _MEMBER, key, (instance, document)
        self._keep(fact)
        if self.tell is not None:
            self.tell(fact)

    def _keep(self, fact: Fact) -> None:
        method, key, _ = fact
        if method == _MEMBER:
            self._latest.setdefault(key, {})
        kept = self._latest.get(key)
        if kept is None or method in (_REMOVED, _LOST):
            return
        if method == "process_replaced":
            for void in _LOAD, "record_failed_scrape", "set_cache_tokens":
                kept.pop(void, None)
            return
        kept.pop(method, None)  # the newest is last: whether a page came or failed then
        kept[method] = fact

    def _forget(self, key: Key) -> None:
        for kept in self._latest, self._instances, self._expected:
            kept.pop(key, None)

    def overdue(self, now: float) -> list[Fact]:
        """The pages that are overdue now and were not before."""
        found = [(key, by) for key, by in self._expected.items() if by <= now]
        for key, _ in found:
            del self._expected[key]
        return [(_EXPECTED, key, (by,)) for key, by in found]

    def snapshot(self) -> Iterator[list[Fact]]:
        """All that is known, a worker at a time: first that it is there. Between two of them others may change, come or go."""
        for key in list(self._latest):
            facts = self._latest.get(key)
            if facts is not None:
                endpoint = self._datastore.find(key)
                lost = _LOST, key, (endpoint is not None and self._datastore.is_lost(endpoint),)
                rest = [fact for method, fact in facts.items() if method != _MEMBER]
                yield [facts[_MEMBER], *rest, lost]

    def retain(self, keys: set[Key]) -> None:
        """There are no other workers than these."""
        for key in self._latest.keys() - keys:
            self.apply((_REMOVED, key, ("deleted",)))

    def apply(self, fact: Fact) -> None:
        """Another process's findings count here; a worker that is not known is ignored."""
        method, key, given = fact
        datastore, known = self._datastore, self._instances.get(key)
        if method in (_MEMBER, _REMOVED):
            self._apply_event(method, known, given)
            return
        endpoint = datastore.find(key)
        if endpoint is None:
            return
        _APPLIED[method](datastore, endpoint, given)

    def _apply_event(self, method: str, known: Instance | None, given: tuple[Any, ...]) -> None:
        event: InstanceEvent
        document: Mapping[str, Any] | None = None
        if method == _MEMBER:
            instance, document = given
            event = InstanceAddedEvent(instance) if known is None else InstanceUpdatedEvent(known, instance)
        elif known is None:
            return
        else:
            event = InstanceRemovedEvent(known, given[0])
        for told in self._on_event:
            told(event)
        self._datastore.apply(event, document)


class FactCodec:
    """Facts as bytes. `metrics`: of the datastores of both sides, in the same order."""

    def __init__(self, metrics: Sequence[WorkerMetric]) -> None:
        self._metrics = metrics
        self._places = {metric: at for at, metric in enumerate(metrics)}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[tuple[str, Key, list[Any]]])

    def encode(self, facts: Iterable[Fact]) -> bytes:
        return self._encoder.encode(
            [(method, key, self._plain(method, given)) for method, key, given in facts]
        )

    def decode(self, data: bytes | bytearray) -> list[Fact]:
        """Raises msgspec.MsgspecError, ValueError, TypeError and LookupError for what `encode` has not made."""
        return [
            (method, key, self._given(method, plain)) for method, key, plain in self._decoder.decode(data)
        ]

    def _plain(self, method: str, given: tuple[Any, ...]) -> Sequence[Any]:
        if method == _LOAD:
            load, now, period = given
            adapters = load.adapters and (list(load.adapters.active), list(load.adapters.waiting))
            # another configuration may be in force here for a moment
            others = [(self._places[one], value) for one, value in load.others.items() if one in self._places]
            return load.waiting, load.running, load.kv_usage, load.max_lora, adapters, others, now, period
        if method == _MEMBER:
            instance, document = given
            one = {field.name: getattr(instance, field.name) for field in fields(Instance) if field.compare}
            one |= {
                "status": instance.status.value,
                "labels": dict(one["labels"]),
                "ports": dict(one["ports"]),
            }
            # a document may have numbers that msgpack has not
            return one, None if document is None else json.dumps(document, default=dict)
        if method == "set_listed_models":
            return [[asdict(one) for one in given[0]]]
        return given

    def _given(self, method: str, plain: list[Any]) -> tuple[Any, ...]:
        if method == _LOAD:
            waiting, running, kv_usage, max_lora, named, others, now, period = plain
            adapters = None if named is None else Adapters(frozenset(named[0]), frozenset(named[1]))
            found = {self._metrics[at]: value for at, value in others if at < len(self._metrics)}
            load = Load(
                waiting=waiting,
                running=running,
                kv_usage=kv_usage,
                max_lora=max_lora,
                adapters=adapters,
                others=found,
            )
            return load, now, period
        if method == _MEMBER:
            instance = Instance(**plain[0] | {"status": InstanceStatus(plain[0]["status"])})
            return instance, None if plain[1] is None else json.loads(plain[1])
        if method == "set_listed_models":
            return (tuple(ServedModel(**one) for one in plain[0]),)
        return tuple(plain)
