"""Refuses at once a request whose first token cannot come in time at any worker, as far as that is foreseen.

Name and rules: llm-d-router, plugins/requestcontrol/admitter/latencyslo. There a predictor is trained by a server beside the
picker; here it is what the picker has learnt of first bytes. Neither foresees later tokens here: the SLO of time per output
token counts for nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from epp.endpoints.endpoint import EndpointPool
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.labels import PREFIX
from epp.plugins.section import Section
from epp.request.control_headers import ttft_slo
from epp.request.inference_request import InferenceRequest, RequestData
from epp.request.rejection import RETRY_AFTER, Rejection
from epp.scheduling.plugin import RequestFollower
from epp.scheduling.prefix.declarations import prefix_cache
from epp.scheduling.work_ahead.columns import requests_at
from epp.scheduling.work_ahead.producer import WorkAheadProducer

OUT_OF_TIME: Final = "rejected-slo"


class LatencySloAdmitter(RequestFollower):
    """`sheddable_only`: only requests of negative priority. `refused`: how many were.

    The prediction may be wrong by as much as the last ones were, in the median: it is in time what would be with that. While
    a worker has no request, nothing is refused, or nobody would notice that workers became faster.
    """

    picked_last = True  # what the prompt's beginning is held by is known then

    def __init__(self, work: WorkAheadProducer, *, sheddable_only: bool = True) -> None:
        self._work = work
        self._sheddable_only = sheddable_only
        self._arrived: RequestData[float] = RequestData()
        self.refused = 0

    def arrived(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """It has to wait: its time runs from now on."""
        slo = self._slo(request)
        if slo is not None:
            self._check(request, pool, self._work.foresee(request, pool), slo)
            self._arrived.keep(request, pool.now)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Raises `Rejection` 429 for a request that is refused."""
        slo = self._slo(request)
        if slo is not None:
            waited = pool.now - (self._arrived.of(request) or pool.now)
            expected = self._work.expected_of_all(request, pool)
            if expected is not None and len(expected):
                self._check(request, pool, float(expected.min()), slo - waited)

    def rehearse(self, request: InferenceRequest, pool: EndpointPool) -> Callable[[], None]:
        """The same of a request that is only explained: it does not count."""
        refused = self.refused
        try:
            self.prepare(request, pool)
        finally:
            self.refused = refused
        return _nothing

    def _slo(self, request: InferenceRequest) -> float | None:
        return None if self._sheddable_only and request.priority >= 0 else ttft_slo(request.headers)

    def _check(self, request: InferenceRequest, pool: EndpointPool, expected: float, left: float) -> None:
        left = max(0.0, left)
        if expected / (1.0 + self._work.error) <= left or not np.all(requests_at(pool)):
            return
        self.refused += 1
        message = f"the first token is due in {left:.3g} s, and no endpoint is expected to begin before {expected:.3g} s"
        raise Rejection(429, "slo_unreachable", message, reason=OUT_OF_TIME, retry_after=RETRY_AFTER)


def _nothing() -> None:
    """Takes nothing back: the rehearsal changed nothing."""


class LatencySloAdmitterParameters(Section):
    sheddable_only: bool = True
    """Refuse only requests of negative priority, as the Go picker does. A parameter of adsum's own."""


def _build(given: LatencySloAdmitterParameters, context: PluginContext) -> LatencySloAdmitter:
    prefixes = prefix_cache(None, context)
    work_ahead = context.shared(WorkAheadProducer, prefixes, lambda: WorkAheadProducer(prefixes))
    admitter = LatencySloAdmitter(work_ahead, sheddable_only=given.sheddable_only)
    for follower in (work_ahead, prefixes, admitter):
        context.follow(follower)
    return admitter


def _metrics(plugins: Sequence[LatencySloAdmitter]) -> Iterable[Metric]:
    refused = sum(one.refused for one in plugins)
    text = "Requests whose first token could not come in time."
    yield CounterMetricFamily(PREFIX + "slo_refused_requests", text, value=refused)


LATENCY_SLO_ADMITTER: Final = PluginDeclaration(
    type="latency-slo-admitter",
    role=Role.ADMITTER,
    parameters=LatencySloAdmitterParameters,
    build=_build,
    metrics=_metrics,
)
