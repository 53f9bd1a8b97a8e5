"""Folds what discovery tells into endpoints, and keeps the numbers that belong to each of them."""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from discovery import Instance, InstanceEvent, InstanceRemovedEvent
from epp.endpoints.endpoint import (
    NEVER,
    NO_ADAPTERS,
    STALE_AFTER_SCRAPES,
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
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import WORKER_METRICS, WorkerMetric

logger = logging.getLogger(__name__)

Key = tuple[str, str]
_INFLIGHT: Final = int(Column.INFLIGHT)  # numpy takes an int faster than an enumeration's member
_SCRAPED_AT: Final = int(Column.SCRAPED_AT)
_UNREPORTED: Final = int(Column.UNREPORTED)


class Datastore:
    """All endpoints of one picker. Everything happens on one event loop: readers never see half a change.

    The `on_` lists are hooks: whoever wants to be told appends a callable, and removes it in the end. They are called
    at once, after everything that the change means is written down, in the order in which they were appended; of one
    event `on_reset` comes first, then `on_change`, then `on_load_change`. A hook must not change the datastore. A fault
    in `on_release` or `on_load_change` is logged and stops nothing; without listeners they cost nothing.
    """

    def __init__(
        self, defaults: EndpointDefaults | None = None, metrics: Sequence[WorkerMetric] = WORKER_METRICS
    ) -> None:
        self.on_change: list[Callable[[], None]] = []
        """Called after endpoints came, went or changed."""
        self.on_reset: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint whose process is gone or another one: what was known of its cache is void."""
        self.on_cache_size: list[Callable[[Endpoint, int], None]] = []
        """Called with an endpoint and how many tokens its cache has room for, once that is known."""
        self.on_release: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint, which may be gone by now, when a request there is over: it is no longer in flight."""
        self.on_load_change: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint that came, changed or went, and with one whose metrics page told other numbers, or no
        good ones any more. Requests that begin are not told: who sends them knows."""
        self.on_use: dict[Key, Callable[[], None]] = {}
        """Called, and forgotten, when a request is next sent to that endpoint."""
        self._defaults = defaults or EndpointDefaults()
        self._endpoints: dict[Key, Endpoint] = {}
        self._rows: dict[Key, int] = {}
        self._epochs: dict[Key, str] = {}
        self._documents: dict[Key, Mapping[str, Any]] = {}
        self._cache_tokens: dict[Key, int] = {}
        self._inflight: dict[Key, int] = {}
        self._metric_rows = rows_of(metrics)
        self._unknown = unknown_numbers(self._metric_rows)
        self._numbers: Floats = self._unknown[:, :0].copy()
        self._adapters: list[Adapters] = []
        self._index: _EndpointIndex | None = None
        self._state: object = object()
        self._adapters_snapshot: tuple[Adapters, ...] | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them, in the order of a pool's columns."""
        return self._current_index().endpoints

    def pool(self, now: float) -> EndpointPool:
        """All endpoints with their numbers; `now` is what their age is measured by."""
        if self._adapters_snapshot is None:
            self._adapters_snapshot = tuple(self._adapters)
        return EndpointPool(
            self.endpoints, self._numbers, self._adapters_snapshot, now, self._state, self._metric_rows
        )

    @property
    def all_reachable(self) -> bool:
        """Whether discovery has no hint that one of them does not answer."""
        return self._current_index().all_reachable

    def serving(self, model: str) -> Mask | None:
        """Where a model or adapter is served: by those that declare it, and those that declare nothing.

        Where nobody declares it, by those whose metrics page shows it as an adapter. None: every one may serve it,
        as they do where no endpoint declares anything.
        """
        index = self._current_index()
        if not index.serving:
            return None
        mask = index.serving.get(model, index.undeclared)
        if mask is None or mask.any():
            return mask
        return np.array([model in a.active or model in a.waiting for a in self._adapters], dtype=np.bool_)

    def apply(self, event: InstanceEvent, document: Mapping[str, Any] | None = None) -> None:
        """Fold one event; `document` is the instance's metadata, None when it is not known (any more)."""
        if isinstance(event, InstanceRemovedEvent):
            endpoint = self._remove(event)
        else:
            endpoint = self._upsert(event.instance, document)
        self._index = self._adapters_snapshot = None
        self._state = object()
        for changed in self.on_change:
            changed()
        if endpoint is not None:
            self._call_hooks(self.on_load_change, endpoint)

    def observe(self, endpoint: Endpoint, load: Load, now: float, period: float = 0.0) -> None:
        """Write down one look at a worker's metrics; what its page does not say stays as it was.

        `period`: seconds until the next look may be in. A load that makes no sense is not believed: from then on the
        endpoint is as one that nobody has looked at yet, which ranks last and counts as full.
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
        values: list[tuple[int | None, float | None]] = [
            (Column.WAITING, load.waiting),
            (Column.RUNNING, load.running),
            (Column.KV_USAGE, load.kv_usage),
            (Column.MAX_LORA, load.max_lora),
            *((self._metric_rows.get(metric), value) for metric, value in load.others.items()),
        ]
        for column, value in values:
            if column is not None and value is not None and value != numbers[column, row]:
                numbers[column, row] = value
                changed = True
        if load.adapters is not None and load.adapters != self._adapters[row]:
            self._adapters[row] = load.adapters
            self._adapters_snapshot = None
            changed = True
        numbers[Column.SCRAPED_AT, row] = now
        numbers[Column.PERIOD, row] = period
        reported = bool(self.on_load_change) and numbers.item(_UNREPORTED, row) > 0.0
        numbers[_UNREPORTED, row] = 0.0
        if changed:
            self._state = object()
        if changed or reported:
            self._call_hooks(self.on_load_change, endpoint)

    def record_failed_scrape(self, endpoint: Endpoint, *, has_page: bool) -> None:
        """A look gave nothing: because there is no page, or (`has_page`) for another reason."""
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
            self._state = object()
            self._call_hooks(self.on_load_change, endpoint)

    def _call_hooks(self, hooks: list[Callable[[Endpoint], None]], endpoint: Endpoint) -> None:
        for hook in hooks.copy():
            try:
                hook(endpoint)
            except Exception as error:  # noqa: BLE001  # what a listener does wrong must not stop who tells it
                # without the fault's own words: those may quote a request
                where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
                logger.error("a hook of the datastore failed: %s\n%s", type(error).__name__, where)

    def cache_tokens(self, endpoint: Endpoint) -> int | None:
        """What its cache has room for; None: not known, or not known any more."""
        return self._cache_tokens.get(endpoint.key)

    def set_cache_tokens(self, endpoint: Endpoint, tokens: int) -> None:
        """Its page says how large its cache is."""
        if endpoint.key in self._endpoints:
            self._cache_tokens[endpoint.key] = tokens
            for hook in self.on_cache_size:
                hook(endpoint, tokens)

    def reserve(self, endpoint: Endpoint) -> None:
        """One more request in flight there. The count belongs to the incarnation, whatever its metadata say."""
        self._change_inflight(endpoint, 1)
        row = self._rows.get(endpoint.key)
        numbers = self._numbers
        if row is not None and numbers.item(_SCRAPED_AT, row) != NEVER:  # else no page would end the count
            numbers[_UNREPORTED, row] = numbers.item(_UNREPORTED, row) + 1.0
        used = self.on_use.pop(endpoint.key, None)
        if used is not None:
            used()

    def release(self, endpoint: Endpoint) -> None:
        """One request fewer in flight there."""
        self._change_inflight(endpoint, -1)
        if self.on_release:
            self._call_hooks(self.on_release, endpoint)

    def inflight(self, endpoint: Endpoint) -> int:
        """Requests that were sent there and have not ended."""
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
        if document is not None:
            self._documents[key] = document
        endpoint = read_endpoint(instance, self._documents.get(key, {}), self._defaults)
        if key not in self._endpoints:
            self._rows[key] = len(self._rows)
            self._numbers = np.hstack((self._numbers, self._unknown))
            self._numbers[Column.INFLIGHT, -1] = self._inflight.get(key, 0)
            self._adapters.append(NO_ADAPTERS)
        self._endpoints[key] = endpoint
        self._numbers[Column.REACHABLE, self._rows[key]] = endpoint.reachable
        self._update_epoch(endpoint, instance.revision)
        return endpoint

    def _update_epoch(self, endpoint: Endpoint, revision: str | None) -> None:
        parts = (revision or "").rsplit(".", 2)
        epoch = parts[1] if len(parts) == 3 else None
        before = self._epochs.get(endpoint.key)
        if epoch is None:
            return
        self._epochs[endpoint.key] = epoch
        if before not in (None, epoch):
            row = self._rows[endpoint.key]
            kept = self._numbers[[Column.INFLIGHT, Column.REACHABLE], row]
            self._numbers[:, row] = self._unknown[:, 0]
            self._numbers[[Column.INFLIGHT, Column.REACHABLE], row] = kept
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
        self._documents.pop(key, None)
        self._epochs.pop(key, None)
        self._cache_tokens.pop(key, None)
        if event.reason in ("deleted", "replaced"):
            self._reset(endpoint)
        return endpoint

    def _reset(self, endpoint: Endpoint) -> None:
        for hook in self.on_reset:
            hook(endpoint)

    def _current_index(self) -> "_EndpointIndex":
        if self._index is None:
            self._index = _EndpointIndex.of(tuple(self._endpoints.values()))
        return self._index


@dataclass(frozen=True, slots=True)
class _EndpointIndex:
    """What follows from the endpoints alone: who serves what. `undeclared`: those that declare nothing.

    `serving` None: all of them.
    """

    endpoints: tuple[Endpoint, ...]
    undeclared: Mask
    serving: Mapping[str, Mask | None]
    all_reachable: bool

    @classmethod
    def of(cls, endpoints: tuple[Endpoint, ...]) -> "_EndpointIndex":
        undeclared = np.array([not endpoint.models for endpoint in endpoints], dtype=np.bool_)
        serving: dict[str, Mask] = {}
        for row, endpoint in enumerate(endpoints):
            for model in endpoint.models:
                serving.setdefault(model, undeclared.copy())[row] = True
        narrowed = {model: None if mask.all() else mask for model, mask in serving.items()}
        return cls(endpoints, undeclared, narrowed, all(endpoint.reachable for endpoint in endpoints))


def _was_stale(before: float, expected: float, now: float, period: float) -> bool:
    """Whether the numbers may have been stale before this look, or may be stale sooner after it than they would be.

    `before` and `expected`: when the last look was and for how long it was good.
    """
    return now - before > STALE_AFTER_SCRAPES * expected or period < expected
