"""Where each kind of gate reads the state of its target: the queries and metrics by name."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

import aiohttp

from dispatcher.broker.budget import ONE, ZERO, closing_point, from_load, from_saturation, valid_share
from dispatcher.gates.page import Page, PageReader
from dispatcher.gates.parameters import (
    BudgetParameters,
    PrometheusParameters,
    QueryParameters,
    SaturationParameters,
    ScrapeParameters,
)
from dispatcher.gates.prometheus import PrometheusReader
from dispatcher.gates.target_source import Fixed, Meaning, Reader, TargetSource

_MOST_LOAD: Final = 10**15
"""Requests, or bytes of them."""
_MOST_SATURATION: Final = 10**6

BY_LOAD: Final = Meaning(from_load, closing_point, _MOST_LOAD)
BY_SATURATION: Final = Meaning(
    lambda value, _: from_saturation(value), lambda _, baseline: ONE - baseline, _MOST_SATURATION
)
BY_ITSELF: Final = Meaning(lambda value, _: valid_share(value) or ZERO, lambda _, baseline: baseline)


def saturation_source(given: SaturationParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - S, S being what the picker's saturation detector says."""
    labels = _labels("inference_pool", given)
    names = ("llm_d_epp_flow_control_pool_saturation", "inference_extension_flow_control_pool_saturation")
    query = " or ".join(f"max({name}{labels})" for name in names)
    return _of_prometheus(f"saturation of {given.pool}", given, [query], BY_SATURATION, session)


def budget_source(given: BudgetParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - load / max_SYS."""
    queries = [given.query] if given.query else load_queries(given)
    return _of_prometheus(f"load of {given.pool or given.query}", given, queries, BY_LOAD, session)


def query_source(given: QueryParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D is what the query gives."""
    return _of_prometheus(given.query, given, [given.query], BY_ITSELF, session)


def scrape_source(given: ScrapeParameters, session: aiohttp.ClientSession) -> TargetSource:
    """D = 1 - count / (max_count_per_pod x pods), or 1 - saturation where there is no such maximum."""
    page = Page(session, given.url, given.access)
    counts = given.max_count_per_pod > 0
    value = PageReader(page, given.metric, given.labels, _total if counts else max, given.absent_value)
    ready: Reader = Fixed(given.pods)
    if given.pods_metric is not None:
        pods_page = page if given.pods_url is None else Page(session, given.pods_url, given.access)
        # the replicas of a picker each count the same pods
        ready = PageReader(pods_page, [given.pods_metric], given.pods_labels, max)
    return TargetSource(
        name=f"{'+'.join(given.metric)} of {given.url}",
        value=value,
        ready=ready,
        per_server=given.max_count_per_pod if counts else given.max_concurrency,
        baseline=given.reserve,
        meaning=BY_LOAD if counts else BY_SATURATION,
    )


def load_queries(given: PrometheusParameters) -> list[str]:
    """The load of a pool in requests, by what the pickers of llm-d say; the first with a sample counts.

    In the pool and in front of it; then what the Go processor asks for: in front of it, waiting in it, running in it.
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
    """How many model servers are ready. Each replica of a picker counts them all."""
    if given.pods_query:
        return given.pods_query
    labels = _labels("name", given)
    return f"max(llm_d_epp_ready_endpoints{labels}) or max(inference_pool_ready_pods{labels})"


def _of_prometheus(
    name: str,
    given: PrometheusParameters,
    queries: list[str],
    meaning: Meaning,
    session: aiohttp.ClientSession,
) -> TargetSource:
    ready: Reader
    if given.pods is not None:
        ready = Fixed(given.pods)
    else:
        ready = PrometheusReader(session, given.url, [ready_query(given)], given.access)
    value = PrometheusReader(session, given.url, queries, given.access)
    return TargetSource(name, value, ready, given.max_concurrency, given.reserve, meaning)


def _labels(name: str, given: PrometheusParameters) -> str:
    namespace = f',namespace="{given.namespace}"' if given.namespace else ""
    return f'{{{name}="{given.pool}"{namespace}}}'


def _total(values: Iterable[Fraction]) -> Fraction:
    return sum(values, Fraction(0))
