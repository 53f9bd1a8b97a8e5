"""The source of each metric gate: its queries and metric names."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

import aiohttp

from dispatcher.broker.capacity.budget import (
    ONE,
    ZERO,
    closing_point,
    from_load,
    from_saturation,
    valid_share,
)
from dispatcher.gates.metering.metrics_page import MetricsPage, MetricsPageReader
from dispatcher.gates.metering.prometheus import PrometheusReader
from dispatcher.gates.metering.target_source import ConstantReader, MetricKind, SampleReader, TargetSource
from dispatcher.gates.parameters import (
    BudgetParameters,
    PrometheusParameters,
    QueryParameters,
    SaturationParameters,
    ScrapeParameters,
)

_MAX_LOAD: Final = 10**15
"""Requests or bytes. A larger number is not believed."""
_MAX_SATURATION: Final = 10**6

LOAD: Final = MetricKind(from_load, closing_point, _MAX_LOAD)
SATURATION: Final = MetricKind(
    lambda value, _: from_saturation(value), lambda _, baseline: ONE - baseline, _MAX_SATURATION
)
BUDGET: Final = MetricKind(lambda value, _: valid_share(value) or ZERO, lambda _, baseline: baseline)


def saturation_source(given: SaturationParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - S, where S is the saturation that the picker exports."""
    labels = _labels("inference_pool", given)
    names = ("llm_d_epp_flow_control_pool_saturation", "inference_extension_flow_control_pool_saturation")
    query = " or ".join(f"max({name}{labels})" for name in names)
    return _prometheus_source(f"saturation of {given.pool}", given, [query], SATURATION, session)


def budget_source(given: BudgetParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - load / max_SYS."""
    queries = [given.query] if given.query else load_queries(given)
    return _prometheus_source(f"load of {given.pool or given.query}", given, queries, LOAD, session)


def query_source(given: QueryParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D is the result of the query."""
    return _prometheus_source(given.query, given, [given.query], BUDGET, session)


def scrape_source(given: ScrapeParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - count / (max_count_per_pod x pods), or 1 - saturation without `max_count_per_pod`."""
    page = MetricsPage(session, given.url, given.credentials)
    counts = given.max_count_per_pod > 0
    value = MetricsPageReader(page, given.metric, given.labels, _sum if counts else max, given.absent_value)
    ready: SampleReader = ConstantReader(given.pods)
    if given.pods_metric is not None:
        pods_page = (
            page if given.pods_url is None else MetricsPage(session, given.pods_url, given.credentials)
        )
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


def load_queries(given: PrometheusParameters) -> list[str]:
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


def ready_query(given: PrometheusParameters) -> str:
    """The query for the number of ready model servers: the maximum, since each replica of a picker counts all."""
    if given.pods_query:
        return given.pods_query
    labels = _labels("name", given)
    return f"max(llm_d_epp_ready_endpoints{labels}) or max(inference_pool_ready_pods{labels})"


def _prometheus_source(
    name: str,
    given: PrometheusParameters,
    queries: list[str],
    kind: MetricKind,
    session: aiohttp.ClientSession,
) -> TargetSource:
    ready: SampleReader
    if given.pods is not None:
        ready = ConstantReader(given.pods)
    else:
        ready = PrometheusReader(session, given.url, [ready_query(given)], given.credentials)
    value = PrometheusReader(session, given.url, queries, given.credentials)
    return TargetSource(name, value, ready, given.max_concurrency, given.reserve, kind)


def _labels(name: str, given: PrometheusParameters) -> str:
    namespace = f',namespace="{given.namespace}"' if given.namespace else ""
    return f'{{{name}="{given.pool}"{namespace}}}'


def _sum(values: Iterable[Fraction]) -> Fraction:
    return sum(values, Fraction(0))
