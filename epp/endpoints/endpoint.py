"""`Endpoint`: a worker's identity and address. `EndpointPool`: the numbers of all endpoints, as numpy columns.

Plugins compute on whole columns, so that the cost of a scorer hardly grows with the pool.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.served_model import ServedModel
from epp.endpoints.worker_metrics import KV_USAGE, RUNNING, WAITING, WorkerMetric

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = NDArray[np.intp]
Key: TypeAlias = tuple[str, str]
"""Id and incarnation of an endpoint; stays the same when its metadata change."""
T = TypeVar("T")

NEVER: Final = float("-inf")
"""The time of a scrape that has not happened."""
UNKNOWN_TIME: Final = float("inf")
"""The time at which an endpoint is late whose next page nobody expects."""

ROLE_LABEL: Final = "llm-d.ai/role"
DECODE_ROLES: Final = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
PREFILL_ROLES: Final = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
)
ENCODE_ROLES: Final = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


class KvEventPorts(NamedTuple):
    """Where a worker says that it publishes KV events, at its own address. `replay` None: it sends nothing again.

    `topic`: the beginning of the topics that are read. `ranks`: so many sockets, each at the next port.
    """

    port: int
    replay: int | None = None
    topic: str = ""
    ranks: int = 1


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Endpoint:
    """One instance as the picker addresses it. Compared by identity.

    `models`: the declared model and its adapters; empty: the worker declares none. Then `listed_models` are those of its
    `/v1/models`; empty: unknown. `engine` None: unknown. `namespace`: of the instance.
    """

    id: str
    incarnation: str
    address: str
    port: int
    metrics_port: int
    metrics_path: str = "/metrics"
    scheme: str = "http"
    engine: str | None = None
    models: frozenset[str] = frozenset()
    listed_models: tuple[ServedModel, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    zone: str | None = None
    node: str | None = None
    reachable: bool = True
    namespace: str = ""
    rank: int | None = None
    """Its rank in a data-parallel group, where each rank is an endpoint of its own."""
    kv_events: KvEventPorts | None = None
    """None: its metadata do not say."""
    ignored: tuple[str, ...] = ()
    """The parts of its metadata that are not used, and why."""
    destination: str = field(init=False)
    """`10.0.0.1:8000` or `[fd00::1]:8000`."""
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        host = f"[{self.address}]" if ":" in self.address else self.address
        object.__setattr__(self, "destination", f"{host}:{self.port}")
        object.__setattr__(self, "key", (self.id, self.incarnation))

    @property
    def decodes(self) -> bool:
        """Whether its role is, or has, decode; one without a role decodes."""
        role = self.labels.get(ROLE_LABEL)
        return not role or role in DECODE_ROLES

    @property
    def prefills(self) -> bool:
        """Whether its role is, or has, prefill."""
        return self.labels.get(ROLE_LABEL) in PREFILL_ROLES


class Column(IntEnum):
    """The rows of an EndpointPool's matrix, each a column over the endpoints."""

    WAITING = 0
    RUNNING = 1
    KV_USAGE = 2
    INFLIGHT = 3
    UNREPORTED = 4
    PEER_INFLIGHT = 5
    SCRAPED_AT = 6
    REACHABLE = 7
    PERIOD = 8
    PAGELESS = 9
    MAX_LORA = 10
    LATE_AT = 11


@dataclass(frozen=True, slots=True)
class Adapters:
    """The LoRA adapters that run in a worker, and those that wait for a slot."""

    active: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()


NO_ADAPTERS: Final = Adapters()
NO_NUMBERS: Floats = np.array(
    [[0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [NEVER], [1.0], [0.0], [0.0], [0.0], [np.inf]]
)
"""The numbers of an endpoint that was never scraped, as a matrix of one column."""


_BUILT_IN_ROWS: Final[Mapping[WorkerMetric, int]] = {
    WAITING: Column.WAITING,
    RUNNING: Column.RUNNING,
    KV_USAGE: Column.KV_USAGE,
}


def rows_of(metrics: Sequence[WorkerMetric]) -> Mapping[WorkerMetric, int]:
    """The row of each metric in a pool's matrix; metrics without a Column come after all Columns."""
    further = [metric for metric in metrics if metric not in _BUILT_IN_ROWS]
    return {**_BUILT_IN_ROWS, **{metric: len(Column) + at for at, metric in enumerate(further)}}


def unknown_numbers(rows: Mapping[WorkerMetric, int]) -> Floats:
    """`NO_NUMBERS`, extended by the metrics without a Column."""
    further = [[metric.unknown] for metric, row in rows.items() if row >= len(Column)]
    return np.vstack((NO_NUMBERS, further)) if further else NO_NUMBERS


STALE_AFTER_SCRAPES: Final = 3.0
"""Numbers are stale after so many scrapes that did not come."""


LONG_LATE: Final = 0.5
"""Seconds: this process, or a machine that is busy, rarely stands still for longer."""


_REMEMBERED: Final = 16
"""Selections of one pool: stale, unreachable or ejected endpoints left out, and the subsets of the requests of the moment."""

_NOTES: Final = 64
"""Facts that plugins keep about the same endpoints: a request may name another subset, or another adapter."""


class SelectedEndpoints:
    """The pools that are left when some endpoints are not wanted, remembered from one pick to the next.

    `kept`: the rows of `endpoints` in the pool. `within`: selections of this one. Plugins keep what they know of endpoints in
    the order of a tuple of them. If one worker of a thousand is away, each pick would make another tuple of the others, and
    all of that anew: 1.5 ms in place of 0.15 (benchmarks/picking/README.md).
    """

    def __init__(self, endpoints: tuple[Endpoint, ...], kept: Indices) -> None:
        self.endpoints = endpoints
        self.kept = kept
        self.within = Selections(endpoints)
        self._adapters: tuple[Adapters, ...] = ()
        self._adapters_of: tuple[Adapters, ...] | None = None
        self._state: object | None = None
        self._state_of: object | None = None

    def adapters(self, of: tuple[Adapters, ...]) -> tuple[Adapters, ...]:
        """The adapters of its endpoints, from those of all endpoints of the pool."""
        if self._adapters_of is not of:
            self._adapters_of, self._adapters = of, tuple([of[row] for row in self.kept.tolist()])
        return self._adapters

    def state(self, of: object | None) -> object | None:
        """One object as long as the state of the pool is one object."""
        if of is None:
            return None
        if self._state_of is not of:
            self._state_of, self._state = of, object()
        return self._state


class Selections:
    """The latest selections of some endpoints, and what was lately found out about them."""

    def __init__(self, of: tuple[Endpoint, ...]) -> None:
        self.of = of
        self._by_mask: OrderedDict[bytes, SelectedEndpoints] = OrderedDict()
        self._notes: OrderedDict[Hashable, Any] = OrderedDict()

    def note(self, about: Hashable, made: Callable[[], T]) -> T:
        """The result of `made` when it was last asked about this; it depends on the endpoints and `about` only."""
        if about in self._notes:
            self._notes.move_to_end(about)
        else:
            self._notes[about] = made()
            if len(self._notes) > _NOTES:
                self._notes.popitem(last=False)
        found: T = self._notes[about]
        return found

    def get(self, mask: Mask) -> SelectedEndpoints:
        """The endpoints in `mask`: the same object as for an equal mask lately."""
        key = mask.tobytes()
        found = self._by_mask.get(key)
        if found is not None:
            self._by_mask.move_to_end(key)
            return found
        kept = np.flatnonzero(mask)
        made = self._by_mask[key] = SelectedEndpoints(tuple([self.of[row] for row in kept.tolist()]), kept)
        if len(self._by_mask) > _REMEMBERED:
            self._by_mask.popitem(last=False)
        return made


class EndpointPool:
    """The endpoints and their numbers at one moment, as float64 columns of equal length.

    `numbers`: a matrix indexed by Column, and by `rows` for other metrics. It is the datastore's own, not a copy, since a
    pool is made for each pick; plugins only read it. `now` and the scrape times: seconds of one monotonic clock. `state`:
    one object as long as the endpoints and what they publish stay the same, whatever is in flight; None: nobody tracks
    changes, so nothing may be cached from one pick to the next. `punctual_until`: no endpoint is late before then.
    `selections`: what was lately selected of these endpoints. `selected_from`: of a selection, all endpoints and its rows
    among them; None: it is none.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        numbers: Floats,
        adapters: Sequence[Adapters],
        now: float,
        state: object | None = None,
        rows: Mapping[WorkerMetric, int] = _BUILT_IN_ROWS,
    ) -> None:
        self.rows = rows
        self.punctual_until = NEVER
        self.selections: Selections | None = None
        self.selected_from: tuple[tuple[Endpoint, ...], Indices] | None = None
        self.endpoints = tuple(endpoints)
        self.numbers = numbers
        self.adapters = tuple(adapters)
        self.now = now
        self.state = state

    def __len__(self) -> int:
        return len(self.endpoints)

    def metric(self, metric: WorkerMetric) -> Floats:
        """The column of a published number; raises LookupError if the datastore does not keep it."""
        row = self.rows.get(metric)
        if row is None:
            kept = ", ".join(one.name for one in self.rows)
            raise LookupError(
                f"the metric {metric.name!r} is not kept; declare it in WORKER_METRICS, beside {kept}"
            )
        values: Floats = self.numbers[row]
        return values

    @property
    def waiting(self) -> Floats:
        """Requests in the worker's own queue."""
        return self._column(Column.WAITING)

    @property
    def running(self) -> Floats:
        """Requests that the worker is serving."""
        return self._column(Column.RUNNING)

    @property
    def kv_usage(self) -> Floats:
        """Share of the KV cache in use, 0 to 1."""
        return self._column(Column.KV_USAGE)

    @property
    def inflight(self) -> Floats:
        """Requests that this picker and its peers sent and that have not ended."""
        return self._column(Column.INFLIGHT)

    @property
    def peer_inflight(self) -> Floats:
        """Its peers sent these of `inflight`."""
        return self._column(Column.PEER_INFLIGHT)

    @property
    def unreported(self) -> Floats:
        """Requests that this picker and its peers sent and that no metrics page shows yet.

        The larger of two estimates: those sent since the last scrape, and those in flight beyond what the page says is
        waiting and running.
        """
        unreported: Floats = np.fmax(
            self.inflight - self.waiting - self.running, self._column(Column.UNREPORTED)
        )
        return unreported

    @property
    def max_lora(self) -> Floats:
        """Adapters that the worker can hold at once; 0 if it publishes none."""
        return self._column(Column.MAX_LORA)

    @property
    def reachable(self) -> Mask:
        """False if discovery has a hint that the worker does not answer."""
        return self._column(Column.REACHABLE) > 0

    @property
    def pageless(self) -> Mask:
        """True for workers without a metrics page: only their requests in flight are known."""
        return self._column(Column.PAGELESS) > 0

    @property
    def age(self) -> Floats:
        """Seconds since the last successful scrape, inf if there was none."""
        return self.now - self._column(Column.SCRAPED_AT)

    def fresh(self, within: float) -> Mask:
        """True for endpoints whose numbers are at most `within` seconds old, or three scrape periods if that is more.

        Idle endpoints are scraped seldom: without the second bound they would be stale because of the schedule alone.
        """
        return self.stale_at(within) >= self.now

    def stale_at(self, within: float) -> Floats:
        """When `fresh(within)` ends for each endpoint; NEVER if it has not begun."""
        longest = np.maximum(within, STALE_AFTER_SCRAPES * self._column(Column.PERIOD))
        ends: Floats = self._column(Column.SCRAPED_AT) + longest
        return ends

    def late(self) -> Mask | None:
        """The endpoints whose page is late: others are to be preferred. None: none is, or so many that it says nothing.

        More than half of those that are scraped are late together if this process, or the machine, has stood still. Then
        those count that have been late for long.
        """
        if self.now <= self.punctual_until:
            return None
        late_at = self._column(Column.LATE_AT)
        most = np.count_nonzero(late_at < UNKNOWN_TIME) // 2
        for since in self.now, self.now - LONG_LATE:
            late: Mask = late_at < since
            count = np.count_nonzero(late)
            if count <= most:
                return late if count else None
        return None

    def select(self, mask: Mask) -> "EndpointPool":
        """The pool of the endpoints in `mask`; the pool itself if these are all."""
        if np.count_nonzero(mask) == len(self.endpoints):
            return self
        selection = self._selections().get(mask)
        kept, adapters, state = selection.kept, selection.adapters(self.adapters), selection.state(self.state)
        pool = EndpointPool(selection.endpoints, self.numbers[:, kept], adapters, self.now, state, self.rows)
        pool.selections, pool.punctual_until = selection.within, self.punctual_until
        if self.selected_from is None:
            pool.selected_from = (self.endpoints, kept)
        else:
            pool.selected_from = (self.selected_from[0], self.selected_from[1][kept])
        return pool

    def note(self, about: Hashable, made: Callable[[], T]) -> T:
        """The result of `made` for the same endpoints and an equal `about`; it must depend on nothing else."""
        return self._selections().note(about, made)

    def row_by_key(self) -> Mapping[Key, int]:
        """The row of each endpoint, by its key."""
        return self.note("rows", lambda: {one.key: row for row, one in enumerate(self.endpoints)})

    def _selections(self) -> Selections:
        selections = self.selections
        if selections is None or selections.of is not self.endpoints:
            selections = self.selections = Selections(self.endpoints)
        return selections

    def _column(self, column: Column) -> Floats:
        values: Floats = self.numbers[column]
        return values
