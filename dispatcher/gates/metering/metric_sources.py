"""The metric that each metric gate reads, and how the dispatch budget of a target follows from it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import aiohttp

from dispatcher.broker.capacity.budget import (
    ONE,
    ZERO,
    closing_point,
    from_load,
    from_saturation,
    spare,
    system_capacity,
    valid_share,
)
from dispatcher.gates import parameters
from dispatcher.gates.metering.meter import Measurement
from dispatcher.gates.metering.readers import (
    MetricsPageReader,
    PrometheusReader,
    Sample,
    SampleReader,
    WebPage,
)


@dataclass(frozen=True, slots=True)
class ConstantReader:
    """A number from the configuration."""

    value: Fraction

    async def read(self) -> Sample:
        return Sample(self.value)


@dataclass(frozen=True, slots=True)
class MetricKind:
    """The meaning of a metric. `estimate`: D, from its value and max_SYS. `closes_at`: the value where D = B, from max_SYS and B.

    Values below 0 or above `max_value` are errors; None: any value is valid.
    """

    estimate: Callable[[Fraction, Fraction], Fraction]
    closes_at: Callable[[Fraction, Fraction], Fraction]
    max_value: int | None = None


@dataclass(frozen=True, slots=True)
class TargetSource:
    """A `MeterSource`: D from `value`, max_SYS from the number of `ready` model servers."""

    name: str
    value: SampleReader
    ready: SampleReader
    per_server: Fraction
    baseline: Fraction
    kind: MetricKind

    async def measure(self) -> Measurement:
        value, ready = await self.value.read(), await self.ready.read()
        if self.kind.max_value is not None:
            _check("the number read", value.value, self.kind.max_value)
        _check("the number of ready model servers", ready.value, _MAX_SERVERS)
        # Without ready servers there is no capacity: closed, whatever the load is. A load of 0 then means nothing.
        capacity = system_capacity(ready.value, self.per_server)
        free = spare(self.kind.estimate(value.value, capacity), self.baseline) if capacity > 0 else ZERO
        threshold = self.kind.closes_at(capacity, self.baseline)
        line = closing_point(capacity, self.baseline)
        # As old as the older of the two numbers: both decide how much is free.
        return Measurement(free, capacity, line, max(value.age, ready.age), value.value, threshold)


_MAX_SERVERS: Final = 1_000_000


def _check(what: str, value: Fraction, max_value: int) -> None:
    if not 0 <= value <= max_value:
        raise parameters.GateSourceError(f"{what} is {float(value):g}, expected one from 0 to {max_value}")


_MAX_LOAD: Final = 10**15
"""Requests or bytes. A larger number is not believed."""
_MAX_SATURATION: Final = 10**6

LOAD: Final = MetricKind(from_load, closing_point, _MAX_LOAD)
SATURATION: Final = MetricKind(
    lambda value, _: from_saturation(value), lambda _, baseline: ONE - baseline, _MAX_SATURATION
)
BUDGET: Final = MetricKind(lambda value, _: valid_share(value) or ZERO, lambda _, baseline: baseline)


def saturation_source(given: parameters.SaturationParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - S, where S is the saturation that the picker exports."""
    labels = _labels("inference_pool", given)
    names = ("llm_d_epp_flow_control_pool_saturation", "inference_extension_flow_control_pool_saturation")
    query = " or ".join(f"max({name}{labels})" for name in names)
    return _prometheus_source(f"saturation of {given.pool}", given, [query], SATURATION, session)


def budget_source(given: parameters.BudgetParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - load / max_SYS."""
    queries = [given.query] if given.query else load_queries(given)
    return _prometheus_source(f"load of {given.pool or given.query}", given, queries, LOAD, session)


def query_source(given: parameters.QueryParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D is the result of the query."""
    return _prometheus_source(given.query, given, [given.query], BUDGET, session)


def scrape_source(given: parameters.ScrapeParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - count / (max_count_per_pod x pods), or 1 - saturation without `max_count_per_pod`."""
    page = WebPage(session, given.url, given)
    counts = given.max_count_per_pod > 0
    value = MetricsPageReader(page, given.metric, given.labels, _sum if counts else max, given.absent_value)
    ready: SampleReader = ConstantReader(given.pods)
    if given.pods_metric is not None:
        pods_page = page if given.pods_url is None else WebPage(session, given.pods_url, given)
        # Each replica of a picker counts the same pods: the largest number, not the sum.
        ready = MetricsPageReader(pods_page, [given.pods_metric], given.pods_labels, max)
    return TargetSource(
        name=f"{'+'.join(given.metric)} of {given.url}",
        value=value,
        ready=ready,
        per_server=given.max_count_per_pod if counts else given.max_concurrency,
        baseline=given.reserve,
        kind=LOAD if counts else SATURATION,
    )


def load_queries(given: parameters.PrometheusParameters) -> list[str]:
    """Queries for the load of a pool in requests; the first with a sample counts.

    The first adds the requests in the pool and in the picker's queue. The others are those of llm-d's Go processor: queued
    in the picker, waiting in the pool, running in the pool.
    """
    by_name, by_pool = _labels("name", given), _labels("inference_pool", given)
    pods = ready_query(given)
    queued = f"(sum(llm_d_epp_flow_control_queue_size{by_pool}) or vector(0))"
    each = f"max(llm_d_epp_average_queue_size{by_name} + llm_d_epp_average_running_requests{by_name})"
    waiting = f"avg(inference_pool_per_pod_queue_size{by_name})"
    return [
        f"{each} * ({pods}) + {queued}",
        f"sum(inference_extension_flow_control_queue_size{by_pool})",
        f"{waiting} * ({pods})",
        f"sum(vllm:num_requests_running{by_pool})",
    ]


def ready_query(given: parameters.PrometheusParameters) -> str:
    """The query for the number of ready model servers: the maximum, since each replica of a picker counts all."""
    if given.pods_query:
        return given.pods_query
    labels = _labels("name", given)
    return f"max(llm_d_epp_ready_endpoints{labels}) or max(inference_pool_ready_pods{labels})"


def _prometheus_source(
    name: str,
    given: parameters.PrometheusParameters,
    queries: list[str],
    kind: MetricKind,
    session: aiohttp.ClientSession,
) -> TargetSource:
    api = WebPage(session, f"{given.url.rstrip('/')}/api/v1/query", given)
    ready: SampleReader = PrometheusReader(api, [ready_query(given)])
    if given.pods is not None:
        ready = ConstantReader(given.pods)
    value = PrometheusReader(api, queries)
    return TargetSource(name, value, ready, given.max_concurrency, given.reserve, kind)


def _labels(name: str, given: parameters.PrometheusParameters) -> str:
    namespace = f',namespace="{given.namespace}"' if given.namespace else ""
    return f'{{{name}="{given.pool}"{namespace}}}'


def _sum(values: Iterable[Fraction]) -> Fraction:
    return sum(values, Fraction(0))
