"""The numbers of one scrape, and the columns in which the numbers of all endpoints are kept. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from epp.endpoints.endpoint import (
    LONG_LATE,
    NEVER,
    NO_ADAPTERS,
    STALE_AFTER_SCRAPES,
    UNKNOWN_TIME,
    Adapters,
    Column,
    EndpointPool,
    Floats,
    Key,
    Mask,
    rows_of,
    unknown_numbers,
)
from epp.endpoints.members import EndpointIndex
from epp.endpoints.worker_metrics import KV_USAGE, RUNNING, WAITING, WorkerMetric

_LATE_AT: Final = int(Column.LATE_AT)
_INFLIGHT: Final = int(Column.INFLIGHT)  # numpy takes an int faster than an enumeration's member
_PEER_INFLIGHT: Final = int(Column.PEER_INFLIGHT)
_SCRAPED_AT: Final = int(Column.SCRAPED_AT)
_UNREPORTED: Final = int(Column.UNREPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The numbers of one scrape; None: not on the page, NaN: malformed."""

    waiting: float | None = None
    running: float | None = None
    kv_usage: float | None = None
    max_lora: float | None = None
    adapters: Adapters | None = None
    others: Mapping[WorkerMetric, float] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the page had any of the numbers."""
        return self != _NOTHING

    @property
    def problem(self) -> str:
        """The first implausible value and what was expected; empty if there is none."""
        built_in = ((WAITING, self.waiting), (RUNNING, self.running), (KV_USAGE, self.kv_usage))
        others = ((metric, value) for metric, value in self.others.items() if not metric.optional)
        for metric, value in (*built_in, *others):
            if value is not None and not 0.0 <= value <= metric.maximum:
                return f"{metric.name} is {value:g}, expected a number from 0 to {metric.maximum:.0f}"
        return ""


_NOTHING: Final = Load()


class LoadColumns:
    """The numbers of all endpoints by their keys, in the order in which they were added.

    Methods return whether a listener of an endpoint's load should hear of the change. A key that was removed is ignored.
    """

    def __init__(self, metrics: Sequence[WorkerMetric]) -> None:
        self._rows: dict[Key, int] = {}
        self._metric_rows = rows_of(metrics)
        self._unknown = unknown_numbers(self._metric_rows)
        self._numbers: Floats = self._unknown[:, :0].copy()
        self._adapters: list[Adapters] = []
        self._adapters_snapshot: tuple[Adapters, ...] | None = None
        self._inflight: dict[Key, int] = {}
        self._peer_inflight: dict[Key, int] = {}
        self._punctual_until = NEVER
        self._state: object = object()

    def pool(self, index: EndpointIndex, now: float) -> EndpointPool:
        """The pool of the endpoints in the index, which must be those of the columns."""
        # a tuple, made only when adapters changed: a pool is made for every pick
        if self._adapters_snapshot is None:
            self._adapters_snapshot = tuple(self._adapters)
        if now > self._punctual_until:
            self._punctual_until = float(self._numbers[_LATE_AT].min(initial=UNKNOWN_TIME))
        pool = EndpointPool(
            index.endpoints, self._numbers, self._adapters_snapshot, now, self._state, self._metric_rows
        )
        pool.punctual_until = self._punctual_until
        pool.selections = index.selections
        return pool

    def running_adapter(self, model: str) -> Mask:
        """The endpoints whose metrics page has the model as an adapter."""
        return np.array([model in a.active or model in a.waiting for a in self._adapters], dtype=np.bool_)

    def members_changed(self) -> None:
        """Endpoints were added, removed or changed: what was cached for their numbers is void."""
        self._adapters_snapshot = None
        self._state = object()

    def add(self, key: Key) -> None:
        if key not in self._rows:
            self._rows[key] = len(self._rows)
            self._numbers = np.hstack((self._numbers, self._unknown))
            self._show_inflight(key)
            self._adapters.append(NO_ADAPTERS)

    def remove(self, key: Key) -> None:
        row = self._rows.pop(key)
        self._numbers = np.delete(self._numbers, row, axis=1)
        del self._adapters[row]
        self._rows = {key: row for row, key in enumerate(self._rows)}

    def forget(self, key: Key) -> None:
        """It is another process, of which nothing is known but what is in flight there."""
        row = self._rows[key]
        self._numbers[:, row] = self._unknown[:, 0]
        self._show_inflight(key)
        self._adapters[row] = NO_ADAPTERS

    def set_reachable(self, key: Key, reachable: bool) -> None:
        self._numbers[Column.REACHABLE, self._rows[key]] = reachable

    def observe(self, key: Key, load: Load, now: float, period: float) -> bool:
        """Store the numbers of one scrape; see `Datastore.observe`."""
        row = self._rows.get(key)
        if row is None:
            return False
        if load.problem:
            return self._invalidate(row)
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
        # A scraper's next request says by when it is due. This is for a scraper that asks no more, and not sooner:
        # if this process stood still, its endpoints in use would all be late before it could ask.
        late_at = now + STALE_AFTER_SCRAPES * period + LONG_LATE
        self._set_late_at(row, late_at if period > 0.0 else UNKNOWN_TIME)
        reported = numbers.item(_UNREPORTED, row) > 0.0
        numbers[_UNREPORTED, row] = 0.0
        if changed:
            self._state = object()
        return changed or reported

    def push(self, key: Key, load: Load, now: float) -> bool:
        """Store numbers that are on no page: whether the next page is late is another thing."""
        row = self._rows.get(key)
        if row is None:
            return False
        numbers = self._numbers
        period = numbers.item(Column.PERIOD, row)
        changed = _was_stale(numbers.item(_SCRAPED_AT, row), period, now, period)
        changed |= self._store_gauges(row, load)
        numbers[_SCRAPED_AT, row] = now
        reported = numbers.item(_UNREPORTED, row) > 0.0
        numbers[_UNREPORTED, row] = 0.0
        if changed:
            self._state = object()
        return changed or reported

    def expect_page(self, key: Key, by: float) -> None:
        """Its next page is late after that, if it was scraped before."""
        row = self._rows.get(key)
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

    def scrape_failed(self, key: Key, *, has_page: bool) -> bool:
        """Without a page its numbers are void; for another reason they grow old."""
        row = self._rows.get(key)
        if row is None:
            return False
        changed = bool(self._numbers[Column.PAGELESS, row]) is has_page
        self._numbers[Column.PAGELESS, row] = not has_page
        return changed if has_page else self._invalidate(row)

    def _invalidate(self, row: int) -> bool:
        if self._numbers[Column.SCRAPED_AT, row] == NEVER:
            return False
        self._numbers[Column.SCRAPED_AT, row] = NEVER
        self._numbers[_LATE_AT, row] = UNKNOWN_TIME
        self._state = object()
        return True

    def inflight(self, key: Key) -> int:
        return self._inflight.get(key, 0)

    def reserve(self, key: Key) -> None:
        """Count one more request in flight, which no page shows yet."""
        self._change_inflight(self._inflight, key, 1)
        self._add_unreported(key, NEVER)

    def release(self, key: Key) -> None:
        """Count one request fewer in flight."""
        self._change_inflight(self._inflight, key, -1)

    def peer_inflight(self, key: Key) -> int:
        return self._peer_inflight.get(key, 0)

    def count_for_peers(self, key: Key, sent: int, over: int, since: float) -> None:
        """Peers sent so many requests then: a page that was read later shows them; and so many are in flight no longer."""
        self._change_inflight(self._peer_inflight, key, sent - over)
        if sent:
            self._add_unreported(key, since, float(sent))

    def _add_unreported(self, key: Key, since: float, count: float = 1.0) -> None:
        row = self._rows.get(key)
        if row is None:
            return
        scraped_at = self._numbers.item(_SCRAPED_AT, row)
        # if it was never scraped, no scrape resets the count
        if scraped_at != NEVER and (since == NEVER or since > scraped_at):
            self._numbers[_UNREPORTED, row] = self._numbers.item(_UNREPORTED, row) + count

    def _change_inflight(self, counts: dict[Key, int], key: Key, difference: int) -> None:
        count = counts.get(key, 0) + difference
        if count > 0:
            counts[key] = count
        else:
            counts.pop(key, None)
        self._show_inflight(key)

    def _show_inflight(self, key: Key) -> None:
        row = self._rows.get(key)
        if row is not None:
            of_peers = self._peer_inflight.get(key, 0)
            self._numbers[_INFLIGHT, row] = self._inflight.get(key, 0) + of_peers
            self._numbers[_PEER_INFLIGHT, row] = of_peers


def _was_stale(before: float, expected: float, now: float, period: float) -> bool:
    """Whether numbers may have been stale before this scrape, or become stale sooner than after the last one.

    Cached scores depend on which numbers are fresh, so either is a change of state. `before`: the time of the last scrape,
    `expected`: its period.
    """
    return now - before > STALE_AFTER_SCRAPES * expected or period < expected
