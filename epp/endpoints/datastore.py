"""Keeps the endpoints that discovery reports, their numbers and their requests in flight."""

import asyncio
import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from discovery import Instance, InstanceEvent, InstanceRemovedEvent
from epp.endpoints.endpoint import (
    LONG_LATE,
    NEVER,
    NO_ADAPTERS,
    STALE_AFTER_SCRAPES,
    UNKNOWN_TIME,
    Adapters,
    Column,
    Endpoint,
    EndpointPool,
    Floats,
    Mask,
    rows_of,
    unknown_numbers,
)
from epp.endpoints.endpoint_document import EndpointDefaults, read_endpoint
from epp.endpoints.endpoint_index import EndpointIndex
from epp.endpoints.load import Load
from epp.endpoints.served_model import ServedModel
from epp.endpoints.worker_metrics import WORKER_METRICS, WorkerMetric

logger = logging.getLogger(__name__)

Key = tuple[str, str]
_LATE_AT: Final = int(Column.LATE_AT)
_INFLIGHT: Final = int(Column.INFLIGHT)  # numpy takes an int faster than an enumeration's member
_SCRAPED_AT: Final = int(Column.SCRAPED_AT)
_UNREPORTED: Final = int(Column.UNREPORTED)


class Datastore:
    """All endpoints of one picker. Used from one event loop only, so readers never see half a change.

    The `on_` lists are hooks: a listener appends a callable and removes it at its end. Hooks are called synchronously,
    once the change is complete, in the order in which they were appended. `on_change` is the exception: it costs time for
    each endpoint of the pool, so it is called once for all changes of one turn of the event loop, before anybody reads the
    endpoints and at the latest in the next turn; without an event loop at each change. A hook must not change the datastore.
    An exception in `on_change`, `on_release` or `on_load_change` is logged and goes no further.
    """

    _punctual_until: float = NEVER
    """As that of a pool: nobody is late before then."""
    _index: EndpointIndex | None = None
    _adapters_snapshot: tuple[Adapters, ...] | None = None
    _untold: bool = False
    """Whether endpoints changed since `on_change` was called."""

    def __init__(
        self, defaults: EndpointDefaults | None = None, metrics: Sequence[WorkerMetric] = WORKER_METRICS
    ) -> None:
        self.on_change: list[Callable[[], None]] = []
        """Called after endpoints were added, removed or changed, once for all changes of a turn."""
        self.on_reset: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint whose process ended or was replaced: its cache is lost."""
        self.on_cache_size: list[Callable[[Endpoint, int], None]] = []
        """Called with an endpoint and the size of its KV cache in tokens, once that is known."""
        self.on_release: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint, which may have been removed, when a request there is no longer in flight."""
        self.on_load_change: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint that was added, changed or removed, or whose scraped numbers changed or became invalid.
        Not called when a request begins: its sender knows."""
        self.on_use: dict[Key, Callable[[], None]] = {}
        """By endpoint: called once, when the next request is sent there."""
        self.on_suspect: dict[Key, Callable[[], None]] = {}
        """By endpoint: called once, when the data plane could not reach it. The listener finds out and calls `set_lost`."""
        self._defaults = defaults or EndpointDefaults()
        self._endpoints: dict[Key, Endpoint] = {}
        self._instances: dict[Key, Instance] = {}
        self._rows: dict[Key, int] = {}
        self._epochs, self._documents = dict[Key, str](), dict[Key, Mapping[str, Any]]()
        self._cache_tokens: dict[Key, int] = {}
        self._inflight: dict[Key, int] = {}
        self._unreachable, self._lost, self._ejected = set[Key](), set[Key](), set[Key]()
        # what each endpoint declares or else lists, in the order of `_endpoints`; equal sets are one object
        self._served: dict[Key, frozenset[str]] = {}
        self._served_sets: dict[frozenset[str], frozenset[str]] = {}
        self._metric_rows = rows_of(metrics)
        self._unknown = unknown_numbers(self._metric_rows)
        self._numbers: Floats = self._unknown[:, :0].copy()
        self._adapters: list[Adapters] = []
        self._state: object = object()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints, in the order of a pool's columns."""
        return self._current_index().endpoints

    def pool(self, now: float) -> EndpointPool:
        """All endpoints with their numbers; the age of the numbers is measured at `now`."""
        # a tuple, made only when adapters changed: a pool is made for every pick
        if self._adapters_snapshot is None:
            self._adapters_snapshot = tuple(self._adapters)
        if now > self._punctual_until:
            self._punctual_until = float(self._numbers[_LATE_AT].min(initial=UNKNOWN_TIME))
        index = self._current_index()
        pool = EndpointPool(
            index.endpoints, self._numbers, self._adapters_snapshot, now, self._state, self._metric_rows
        )
        pool.punctual_until = self._punctual_until
        pool.selections = index.selections
        return pool

    @property
    def all_reachable(self) -> bool:
        """False if an endpoint is ejected, or there is a hint that it does not answer, of discovery or by `set_lost`."""
        return not self._lost and not self._ejected and not self._unreachable

    def serving(self, model: str) -> Mask | None:
        """The endpoints that may serve a model or adapter; None: all of them.

        These are the endpoints that declare or list it, and those of which nothing is known. If there are none, those whose
        metrics page has it as an adapter; if none has, those that only list models: a list is no promise that there are no
        others (aliases, adapters that are loaded on demand), and such a worker answers for itself. If no endpoint declares
        or lists anything, all.
        """
        index = self._current_index()
        if not index.restricts:
            return None
        mask = index.found[model] if model in index.found else index.serving(model)
        if mask is None or mask.any():
            return mask
        mask = np.array([model in a.active or model in a.waiting for a in self._adapters], dtype=np.bool_)
        return mask if mask.any() else index.listing

    def apply(self, event: InstanceEvent, document: Mapping[str, Any] | None = None) -> Endpoint | None:
        """Apply one event; `document`: the instance's metadata, None: unknown, so the last known metadata stay.

        Returns the endpoint as it is now, or was; None if there was none.
        """
        if isinstance(event, InstanceRemovedEvent):
            endpoint = self._remove(event)
        else:
            endpoint = self._upsert(event.instance, document)
        self._tell_change(endpoint)
        return endpoint

    def set_listed_models(self, endpoint: Endpoint, models: tuple[ServedModel, ...]) -> None:
        """Store what its `/v1/models` lists; empty: unknown."""
        key = endpoint.key
        current = self._endpoints.get(key)
        if current is None or current.listed_models == models:
            return
        endpoint = replace(current, listed_models=models)
        self._store(endpoint)
        self._tell_change(endpoint)

    def _store(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.key] = endpoint
        names = endpoint.models or frozenset([listed.id for listed in endpoint.listed_models])
        self._served[endpoint.key] = self._served_sets.setdefault(names, names)

    def _tell_change(self, endpoint: Endpoint | None) -> None:
        """Endpoints were added, removed or changed; `endpoint`: the one that was."""
        self._index = self._adapters_snapshot = None
        self._state = object()
        if not self._untold:
            self._untold = True
            try:
                asyncio.get_running_loop().call_soon(self._tell)
            except RuntimeError:  # no event loop, so no later turn
                self._tell()
        if endpoint is not None:
            self._call_hooks(self.on_load_change, endpoint)

    def _tell(self) -> None:
        """Call `on_change`, unless a reader was sooner."""
        if self._untold:
            self._untold = False
            for changed in self.on_change.copy():
                try:
                    changed()
                except Exception as error:  # noqa: BLE001  # a listener's fault must not stop the others
                    _log_fault(error)

    def reread(self, defaults: EndpointDefaults) -> None:
        """Make all endpoints anew with other defaults. Their numbers, their requests in flight and their caches stay."""
        if defaults == self._defaults:
            return
        self._defaults = defaults
        for key, instance in self._instances.items():
            listed = self._endpoints[key].listed_models
            self._store(read_endpoint(instance, self._documents.get(key, {}), defaults, listed))
        self._tell_change(None)
        for endpoint in self.endpoints:
            self._call_hooks(self.on_load_change, endpoint)

    def observe(self, endpoint: Endpoint, load: Load, now: float, period: float = 0.0) -> None:
        """Store the numbers of one scrape; numbers that are not on the page stay.

        `period`: seconds until the next scrape is expected, 0: unknown, so the endpoint is never late. A load with an
        implausible value is dropped as a whole, and the endpoint counts as never scraped: it ranks last and counts as full.
        The last good numbers would be a guess that nothing bounds.
        """
        row = self._rows.get(endpoint.key)
        if row is None:
            return
        if load.problem:
            self._invalidate(endpoint, row)
            return
        numbers = self._numbers
        numbers[Column.PAGELESS, row] = 0.0
        changed = _was_stale(numbers[Column.SCRAPED_AT, row], numbers[Column.PERIOD, row], now, period)
        changed |= self._store_gauges(row, load)
        self._store_counters(row, load)
        if load.adapters is not None and load.adapters != self._adapters[row]:
            self._adapters[row] = load.adapters
            self._adapters_snapshot = None
            changed = True
        numbers[Column.SCRAPED_AT, row] = now
        numbers[Column.PERIOD, row] = period
        # Whoever asks for the next page says by when it is due. This is for a scraper that asks no more, and not sooner:
        # if this process stood still, its endpoints in use would all be late before it could ask.
        late_at = now + STALE_AFTER_SCRAPES * period + LONG_LATE
        self._set_late_at(row, late_at if period > 0.0 else UNKNOWN_TIME)
        reported = bool(self.on_load_change) and numbers.item(_UNREPORTED, row) > 0.0
        numbers[_UNREPORTED, row] = 0.0
        if changed:
            self._state = object()
        if changed or reported:
            self._call_hooks(self.on_load_change, endpoint)

    def expect_page(self, endpoint: Endpoint, by: float) -> None:
        """Its next page is expected by then, and it is late after that; for an endpoint that was scraped before."""
        row = self._rows.get(endpoint.key)
        if row is not None and self._numbers.item(_LATE_AT, row) != UNKNOWN_TIME:
            self._set_late_at(row, by)

    def _set_late_at(self, row: int, time: float) -> None:
        self._numbers[_LATE_AT, row] = time
        self._punctual_until = min(self._punctual_until, time)

    def _store_gauges(self, row: int, load: Load) -> bool:
        """Returns whether one of them is another one than before."""
        numbers, changed = self._numbers, False
        values: list[tuple[int | None, float | None]] = [
            (Column.WAITING, load.waiting),
            (Column.RUNNING, load.running),
            (Column.KV_USAGE, load.kv_usage),
            (Column.MAX_LORA, load.max_lora),
            *(
                (self._metric_rows.get(metric), value)
                for metric, value in load.others.items()
                if not metric.counter
            ),
        ]
        for column, value in values:
            if column is None or value is None or value == numbers[column, row]:
                continue
            # an optional number: still unknown
            changed |= not (math.isnan(value) and math.isnan(numbers[column, row]))
            numbers[column, row] = value
        return changed

    def _store_counters(self, row: int, load: Load) -> None:
        """Counters grow with every scrape of a busy worker, and no cached score reads them: no new state."""
        for metric, value in load.others.items():
            column = self._metric_rows.get(metric)
            if metric.counter and column is not None:
                self._numbers[column, row] = value

    def record_failed_scrape(self, endpoint: Endpoint, *, has_page: bool) -> None:
        """A scrape failed: the worker has no metrics page, or (`has_page`) for another reason."""
        row = self._rows.get(endpoint.key)
        if row is None:
            return
        changed = bool(self._numbers[Column.PAGELESS, row]) is has_page
        self._numbers[Column.PAGELESS, row] = not has_page
        if not has_page:
            self._invalidate(endpoint, row)
        elif changed:
            self._call_hooks(self.on_load_change, endpoint)

    def _invalidate(self, endpoint: Endpoint, row: int) -> None:
        if self._numbers[Column.SCRAPED_AT, row] != NEVER:
            self._numbers[Column.SCRAPED_AT, row] = NEVER
            self._numbers[_LATE_AT, row] = UNKNOWN_TIME
            self._state = object()
            self._call_hooks(self.on_load_change, endpoint)

    def _call_hooks(self, hooks: list[Callable[[Endpoint], None]], endpoint: Endpoint) -> None:
        for hook in hooks.copy():
            try:
                hook(endpoint)
            except Exception as error:  # noqa: BLE001  # a listener's fault must not stop the caller
                _log_fault(error)

    def set_lost(self, endpoint: Endpoint, *, lost: bool) -> bool:
        """Whether nothing accepts connections there: a hint beside that of discovery. Returns whether this is new."""
        return self._mark(self._lost, endpoint, marked=lost)

    def is_lost(self, endpoint: Endpoint) -> bool:
        return endpoint.key in self._lost

    def set_ejected(self, endpoint: Endpoint, *, ejected: bool) -> None:
        """Whether it is avoided because it failed requests; it counts as unreachable, and new processes begin without."""
        self._mark(self._ejected, endpoint, marked=ejected)

    def _mark(self, keys: set[Key], endpoint: Endpoint, *, marked: bool) -> bool:
        """Whether it is among these, which count as unreachable. Returns whether this is new."""
        key = endpoint.key
        row = self._rows.get(key)
        if row is None or (key in keys) == marked:
            return False
        if marked:
            keys.add(key)
        else:
            keys.discard(key)
        self._numbers[Column.REACHABLE, row] = self._is_reachable(self._endpoints[key])
        self._call_hooks(self.on_load_change, endpoint)
        return True

    def suspect(self, endpoint: Endpoint) -> None:
        """The data plane could not reach it: it is avoided until whoever listens in `on_suspect` says otherwise.

        Without a listener nothing would end that, so nothing happens.
        """
        find_out = self.on_suspect.pop(endpoint.key, None)
        if find_out is not None:
            self.set_lost(endpoint, lost=True)
            find_out()

    def current(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint as it is now; as it was given, if it was removed."""
        return self._endpoints.get(endpoint.key, endpoint)

    def _is_reachable(self, endpoint: Endpoint) -> bool:
        return endpoint.reachable and endpoint.key not in self._lost and endpoint.key not in self._ejected

    def cache_tokens(self, endpoint: Endpoint) -> int | None:
        """The size of its KV cache in tokens; None: unknown."""
        return self._cache_tokens.get(endpoint.key)

    def set_cache_tokens(self, endpoint: Endpoint, tokens: int) -> None:
        """Store the size of its KV cache, which its metrics page has."""
        if endpoint.key in self._endpoints:
            self._cache_tokens[endpoint.key] = tokens
            for hook in self.on_cache_size:
                hook(endpoint, tokens)

    def reserve(self, endpoint: Endpoint) -> None:
        """Count one more request in flight there. The count belongs to the incarnation, whatever the metadata."""
        self._change_inflight(endpoint, 1)
        row = self._rows.get(endpoint.key)
        numbers = self._numbers
        # otherwise no scrape resets the count
        if row is not None and numbers.item(_SCRAPED_AT, row) != NEVER:
            numbers[_UNREPORTED, row] = numbers.item(_UNREPORTED, row) + 1.0
        used = self.on_use.pop(endpoint.key, None)
        if used is not None:
            used()

    def release(self, endpoint: Endpoint) -> None:
        """Count one request fewer in flight there."""
        self._change_inflight(endpoint, -1)
        if self.on_release:
            self._call_hooks(self.on_release, endpoint)

    def inflight(self, endpoint: Endpoint) -> int:
        """The number of requests that were sent there and have not ended."""
        return self._inflight.get(endpoint.key, 0)

    def _change_inflight(self, endpoint: Endpoint, difference: int) -> None:
        key = endpoint.key
        count = self._inflight.get(key, 0) + difference
        row = self._rows.get(key)
        if row is not None:
            self._numbers[_INFLIGHT, row] = count
        if count > 0:
            self._inflight[key] = count
        else:
            self._inflight.pop(key, None)

    def _upsert(self, instance: Instance, document: Mapping[str, Any] | None) -> Endpoint:
        key = (instance.id, instance.incarnation)
        self._instances[key] = instance
        if document is not None:
            self._documents[key] = document
        before = self._endpoints.get(key)
        listed = () if before is None else before.listed_models
        endpoint = read_endpoint(instance, self._documents.get(key, {}), self._defaults, listed)
        if key not in self._endpoints:
            self._rows[key] = len(self._rows)
            self._numbers = np.hstack((self._numbers, self._unknown))
            self._numbers[Column.INFLIGHT, -1] = self._inflight.get(key, 0)
            self._adapters.append(NO_ADAPTERS)
        if endpoint.reachable and before is not None and not before.reachable:
            self._lost.discard(key)  # it answered discovery since
        self._store(endpoint)
        if endpoint.reachable:
            self._unreachable.discard(key)
        else:
            self._unreachable.add(key)
        self._numbers[Column.REACHABLE, self._rows[key]] = self._is_reachable(endpoint)
        self._update_epoch(endpoint, instance.revision)
        return endpoint

    def _update_epoch(self, endpoint: Endpoint, revision: str | None) -> None:
        # a revision is incarnation, epoch, count: another epoch is a new process in the same Pod
        parts = (revision or "").rsplit(".", 2)
        epoch = parts[1] if len(parts) == 3 else None
        before = self._epochs.get(endpoint.key)
        if epoch is None:
            return
        self._epochs[endpoint.key] = epoch
        if before not in (None, epoch):
            self._forget_process(endpoint)

    def process_replaced(self, endpoint: Endpoint) -> None:
        """Nothing accepted connections there, and now it answers: another process, whose cache is empty."""
        if endpoint.key in self._endpoints:
            self._forget_process(endpoint)
            self._adapters_snapshot = None
            self._state = object()
            self._call_hooks(self.on_load_change, endpoint)

    def _forget_process(self, endpoint: Endpoint) -> None:
        row = self._rows[endpoint.key]
        self._lost.discard(endpoint.key)
        self._ejected.discard(endpoint.key)
        inflight = self._numbers[Column.INFLIGHT, row]
        self._numbers[:, row] = self._unknown[:, 0]
        self._numbers[Column.INFLIGHT, row] = inflight
        self._numbers[Column.REACHABLE, row] = self._endpoints[endpoint.key].reachable
        self._adapters[row] = NO_ADAPTERS
        self._cache_tokens.pop(endpoint.key, None)
        self._reset(endpoint)

    def _remove(self, event: InstanceRemovedEvent) -> Endpoint | None:
        key = (event.instance.id, event.instance.incarnation)
        endpoint = self._endpoints.pop(key, None)
        if endpoint is None:
            return None
        row = self._rows[key]
        self._numbers = np.delete(self._numbers, row, axis=1)
        del self._adapters[row]
        self._rows = {key: row for row, key in enumerate(self._endpoints)}
        del self._instances[key], self._served[key]
        self._documents.pop(key, None)
        self._epochs.pop(key, None)
        for keys in self._unreachable, self._lost, self._ejected:
            keys.discard(key)
        self._cache_tokens.pop(key, None)
        # an endpoint that is only not ready may come back with its cache
        if event.reason in ("deleted", "replaced"):
            self._reset(endpoint)
        return endpoint

    def _reset(self, endpoint: Endpoint) -> None:
        for hook in self.on_reset:
            hook(endpoint)

    def _current_index(self) -> EndpointIndex:
        index = self._index
        if index is None:
            index = self._index = EndpointIndex(tuple(self._endpoints.values()), self._served.values())
            self._served_sets = {names: names for names in index.groups}
            self._tell()
        return index


def _log_fault(error: Exception) -> None:
    # without the exception's text, which may quote a request
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logger.error("a hook of the datastore failed: %s\n%s", type(error).__name__, where)


def _was_stale(before: float, expected: float, now: float, period: float) -> bool:
    """Whether numbers may have been stale before this scrape, or become stale sooner than after the last one.

    Cached scores depend on which numbers are fresh, so either is a change of state. `before`: the time of the last scrape,
    `expected`: its period.
    """
    return now - before > STALE_AFTER_SCRAPES * expected or period < expected
