"""The pool as the page shows it: who is in it, which changes seldom, and its numbers, which change each second."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import NEVER, Endpoint, EndpointPool, Floats
from epp.outliers.outlier_record import OutlierRecord, OutlierState
from epp.scheduling.plugin import DeliveryFollower, PredictingProducer
from epp.web.pick_history import PickHistory

_MOST_MODELS: Final = 3
"""Models of one endpoint that are named; adapters may be hundreds."""
_MOST_TEXT: Final = 200
_MOST_ABSENT: Final = 50
"""Workers outside the pool that are named."""


class EndpointStatus(IntEnum):
    """The picker's verdict on an endpoint; of several that are true, the last. `epp/web/static/pool.js` has the words."""

    READY = 0
    UNSEEN = 1
    STALE = 2
    PAGELESS = 3
    LATE = 4
    UNREACHABLE = 5
    TRIAL = 6
    SUSPECT = 7
    EJECTED = 8


_OF_STATE: Final = {
    OutlierState.SUSPECT: EndpointStatus.SUSPECT,
    OutlierState.EJECTED: EndpointStatus.EJECTED,
    OutlierState.PROBING: EndpointStatus.EJECTED,
    OutlierState.TRIAL: EndpointStatus.TRIAL,
}


def statuses(pool: EndpointPool, stale_after: float, outliers: Sequence[OutlierRecord]) -> NDArray[np.int8]:
    """An EndpointStatus for each endpoint. `outliers`: those that are not serving."""
    age = pool.age
    found = np.full(len(pool), EndpointStatus.READY, dtype=np.int8)
    found[~pool.fresh(stale_after)] = EndpointStatus.STALE
    found[age == -NEVER] = EndpointStatus.UNSEEN
    found[pool.pageless] = EndpointStatus.PAGELESS
    late = pool.late()
    if late is not None:
        found[late] = EndpointStatus.LATE
    found[~pool.reachable] = EndpointStatus.UNREACHABLE
    if outliers:
        rows = {endpoint.key: row for row, endpoint in enumerate(pool.endpoints)}
        for record in outliers:
            row = rows.get(record.endpoint.key)
            if row is not None:
                found[row] = _OF_STATE.get(record.state, EndpointStatus.READY)
    return found


class PoolView:
    """`members` and `load` are topics of a LiveFeed. A load belongs to the members of the same `version`."""

    def __init__(
        self,
        pool: Callable[[], EndpointPool],
        saturation: Callable[[], float],
        statuses: Callable[[EndpointPool], NDArray[np.int8]],
        history: PickHistory,
        engine: Callable[[Endpoint], str | None] = attrgetter("engine"),
        engines_detected: Callable[[], int] = int,
    ) -> None:
        self.predicting: Callable[[], PredictingProducer | None] = lambda: None
        self.cache_evidence: Callable[[], DeliveryFollower | None] = lambda: None
        self._engine = engine
        self._engines_detected = engines_detected
        self._pool = pool
        self._saturation = saturation
        self._statuses = statuses
        self._history = history
        self._shown: tuple[tuple[Endpoint, ...], int] | None = None
        self._version = 0

    def members(self) -> bytes | None:
        """None: they are as they were."""
        endpoints = self._pool().endpoints
        detected = self._engines_detected()
        if self._shown is not None and self._shown[0] is endpoints and self._shown[1] == detected:
            return None
        self._shown = endpoints, detected
        self._version += 1
        return msgspec.json.encode(
            {"version": self._version, "endpoints": [_describe(one, self._engine(one)) for one in endpoints]}
        )

    def load(self) -> bytes:
        """Columns in the order of the members; null: not known."""
        pool = self._pool()
        age = pool.age
        seen = np.isfinite(age)
        recent = self._history.recent(pool.endpoints, pool.now)
        document: dict[str, Any] = {
            "version": self._version,
            "saturation": _rounded(self._saturation(), 3),
            "picks_per_second": _rounded(recent.picks_per_second, 1),
            "window": _rounded(recent.seconds, 0),
            "status": self._statuses(pool).tolist(),
            "age": np.round(age, 2).tolist(),
            "inflight": pool.inflight.tolist(),
            "peer_inflight": pool.peer_inflight.tolist(),
            "waiting": _known(pool.waiting, seen, 0),
            "running": _known(pool.running, seen, 0),
            "kv_usage": _known(pool.kv_usage, seen, 3),
            "share": np.round(recent.shares, 4).tolist(),
            "hits": np.round(recent.hits, 3).tolist(),
        }
        producer = self.predicting()
        if producer is not None:
            known = [producer.learnt_of(endpoint) for endpoint in pool.endpoints]
            document["slowness"] = [one.get("slowness") for one in known]
            document["counter"] = [one.get("counter") for one in known]
        follower = self.cache_evidence()
        if follower is not None:
            words = [follower.says(endpoint) for endpoint in pool.endpoints]
            if any(words):  # a column of the page, where any worker publishes events
                document["cache"] = [None if one is None else one.by for one in words]
                document["confidence"] = [None if one is None else one.confidence for one in words]
        return msgspec.json.encode(document)  # NaN and infinity become null


def learnt(producer: PredictingProducer | None) -> bytes:
    """A topic of a LiveFeed: what requests cost, each number with its standard error; null: nobody learns it."""
    return msgspec.json.encode(None if producer is None else producer.learnt())


def absent(reasons: Mapping[str, str]) -> bytes:
    """A topic of a LiveFeed: who is known and gets no requests, and why. `reasons`: by the worker's id."""
    named = heapq.nsmallest(_MOST_ABSENT, reasons.items())
    workers = [{"id": name[:_MOST_TEXT], "why": why[:_MOST_TEXT]} for name, why in named]
    return msgspec.json.encode({"count": len(reasons), "workers": workers})


def _describe(endpoint: Endpoint, engine: str | None) -> dict[str, Any]:
    models = sorted(endpoint.models or {model.id for model in endpoint.listed_models})
    return {
        "id": endpoint.id[:_MOST_TEXT],
        "key": "/".join(endpoint.key)[: 2 * _MOST_TEXT],
        "destination": endpoint.destination[:_MOST_TEXT],
        "engine": engine and engine[:_MOST_TEXT],
        "zone": endpoint.zone and endpoint.zone[:_MOST_TEXT],
        "models": [model[:_MOST_TEXT] for model in models[:_MOST_MODELS]],
        "more_models": max(0, len(models) - _MOST_MODELS),
    }


def _known(column: Floats, seen: NDArray[np.bool_], digits: int) -> list[float]:
    known: list[float] = np.where(seen, np.round(column, digits), np.nan).tolist()
    return known


def _rounded(value: float, digits: int) -> float:
    return round(float(value), digits) if np.isfinite(value) else float("nan")
