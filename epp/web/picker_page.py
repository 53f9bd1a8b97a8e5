"""The picker's page: its live data, and the sampling that goes on while nobody looks."""

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Never

import msgspec
import numpy as np
from numpy.typing import NDArray

from adsum.logs import RateLimitedLog
from adsum.web.live_feed import LiveFeed
from adsum.web.program_page import ProgramPage
from discovery import InstanceEvent, InstanceRemovedEvent
from epp.config.sibling_processes import SharedTopic
from epp.decisions.ring import DecisionRing
from epp.endpoints.endpoint import Endpoint, EndpointPool, Key
from epp.flow_control.controller import FlowController
from epp.outliers.outlier_record import Cause, OutlierRecord
from epp.scheduling.pick import Credit
from epp.scheduling.plugin import DeliveryFollower, PredictingProducer
from epp.web.decision_view import DecisionView, decisions_of_all
from epp.web.event_log import EventLog
from epp.web.pick_history import INTERVAL, PickHistory
from epp.web.pool_view import PoolView, absent, learnt, statuses

log = logging.getLogger(__name__)

_STATIC: Final = Path(__file__).parent / "static"
_LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks for endpoints that are avoided, so that the events tell of them."""
_MOST_FLOWS: Final = 8
"""Flows of one priority that are named: the longest ones."""
_MOST_TEXT: Final = 100

_CAUSES: Final = {
    Cause.CONSECUTIVE_5XX: "it answered requests in a row with 5xx",
    Cause.LOCAL_ORIGIN: "requests in a row could not be sent there, were cut or refused with 503",
    Cause.FAILURE_PERCENTAGE: "too many of its requests failed",
    Cause.STALLED: "it does not answer, while others do",
    Cause.TRIAL: "it failed the request that it got on trial",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PickerParts:
    """The parts of a picker that the page reads, on the event loop. `name`: of the pool. `picks`, `credits`: as of `PickHistory`."""

    name: str
    pool: Callable[[], EndpointPool]
    saturation: Callable[[], float]
    status: Callable[[], Mapping[str, Any]]
    absent: Callable[[], Mapping[str, str]]
    outliers: Callable[[], list[OutlierRecord]]
    flow_control: Callable[[], FlowController | None]
    decisions: DecisionRing | None
    picks: dict[Key, int]
    credits: Callable[[], Mapping[Key, Credit]]
    stale_after: float
    clock: Callable[[], float]
    engine: Callable[[Endpoint], str | None] = attrgetter("engine")
    engines_detected: Callable[[], int] = int
    """`Scraper.engines_detected`."""
    predicting: Callable[[], PredictingProducer | None] = lambda: None
    cache_evidence: Callable[[], DeliveryFollower | None] = lambda: None
    others: Callable[[], Mapping[Key, tuple[int, int, int]]] = dict
    """As of `PickHistory`."""
    of_all: Callable[[str], bytes] | None = None
    """Returns a topic of `PickerPage.shared` with what other processes have; None: there are none."""


class PickerPage:
    """`page` is to be served; `run` is to run beside it. `shared`: topics that are of all processes where there are several,
    and what makes one of those of several.
    """

    def __init__(self, parts: PickerParts) -> None:
        self._parts = parts
        self._history = PickHistory(parts.picks, parts.credits, parts.others)
        self._sampled_at = float("-inf")
        self._limited_log = RateLimitedLog(log)
        self.events = EventLog()
        view = PoolView(
            parts.pool, parts.saturation, self._statuses, self._history, parts.engine, parts.engines_detected
        )
        view.predicting = parts.predicting
        view.cache_evidence = parts.cache_evidence
        self.shared: dict[str, SharedTopic] = {
            "queues": (lambda: _queues(parts.flow_control(), parts.clock()), queues_of_all),
            "decisions": (DecisionView(parts.decisions, parts.clock).topic, decisions_of_all),
        }
        of_all = parts.of_all
        topics: dict[str, Callable[[], bytes | None]] = {
            "status": self._status,
            "members": view.members,
            "load": view.load,
            "absent": lambda: absent(parts.absent()),
            "learnt": lambda: learnt(parts.predicting()),
            "events": self.events.topic,
            **{
                name: own if of_all is None else partial(of_all, name)
                for name, (own, _) in self.shared.items()
            },
        }
        self.page = ProgramPage("picker", _STATIC, "picker.js", LiveFeed(topics))

    def discovered(self, event: InstanceEvent) -> None:
        """A worker came, changed or went."""
        is_deleted = isinstance(event, InstanceRemovedEvent) and event.reason == "deleted"
        why = self._parts.absent().get(event.instance_id) if is_deleted else None
        self.events.discovered(event, time.time(), why)

    async def run(self) -> Never:
        """Note each second who is avoided, and every INTERVAL the picks of each endpoint."""
        while True:
            try:
                self._sample()
            except Exception as error:  # noqa: BLE001  # a fault of the page must not end the picker
                self._limited_log.warning("sample", "the page cannot follow the pool: %r", error)
            await asyncio.sleep(_LOOK_INTERVAL)

    def _sample(self) -> None:
        pool, outliers = self._parts.pool(), self._parts.outliers()
        if pool.now - self._sampled_at >= INTERVAL:
            self._sampled_at = pool.now
            self._history.sample(pool.endpoints, pool.now)
        causes = {one.endpoint.key: _CAUSES[one.cause] for one in outliers if one.cause}
        self.events.compare(pool.endpoints, self._statuses(pool), causes, time.time())

    def _statuses(self, pool: EndpointPool) -> NDArray[np.int8]:
        return statuses(pool, self._parts.stale_after, self._parts.outliers())

    def _status(self) -> bytes:
        return msgspec.json.encode({"name": self._parts.name, **self._parts.status()})


def _queues(controller: FlowController | None, now: float) -> bytes:
    """The requests that wait at each priority, the highest first; null: flow control is off."""
    if controller is None:
        return b"null"
    bands = []
    for band in controller.bands:
        oldest = band.oldest()
        longest = heapq.nlargest(_MOST_FLOWS, band.lengths().items(), key=lambda flow: flow[1])
        bands.append(
            {
                "priority": band.priority,
                "ceiling": round(band.ceiling, 3),
                "waiting": len(band.waiting),
                "bytes": band.bytes,
                "max_requests": band.settings.max_requests,
                "oldest": None if oldest is None else round(now - oldest.arrived_at, 1),
                "longest": [{"flow": name[:_MOST_TEXT], "waiting": count} for name, count in longest],
            }
        )
    return msgspec.json.encode({"priorities": bands})


def queues_of_all(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One such document of those of several processes."""
    # bounded: by the priorities of our own processes
    found: dict[int, list[Mapping[str, Any]]] = {}
    for band in [band for one in told for band in one["priorities"]]:
        found.setdefault(band["priority"], []).append(band)
    return {"priorities": [_band_of_all(found[priority]) for priority in sorted(found, reverse=True)]}


def _band_of_all(bands: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    flows = Counter[str]()
    for flow in [flow for band in bands for flow in band["longest"]]:
        flows[flow["flow"]] += flow["waiting"]
    return {
        **bands[0],
        **{name: sum(band[name] for band in bands) for name in ("waiting", "bytes", "max_requests")},
        "oldest": max((band["oldest"] for band in bands if band["oldest"] is not None), default=None),
        "longest": [{"flow": name, "waiting": count} for name, count in flows.most_common(_MOST_FLOWS)],
    }
