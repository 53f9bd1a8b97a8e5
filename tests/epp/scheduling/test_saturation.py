"""The Go picker's own table of values."""

import pytest

from epp.endpoints.endpoint import NEVER, NO_NUMBERS, EndpointPool
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.saturation import UtilizationDetector
from tests.epp.scheduling.endpoint_pools import REQUEST, pool_of

DETECTOR = UtilizationDetector(queue_depth=5, kv_cache_utilization=0.9, staleness=0.1)


def test_a_pool_without_endpoints_is_full() -> None:
    assert DETECTOR.saturation(EndpointPool([], NO_NUMBERS[:, :0], [], 0.0)) == 1.0


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "ages", "expected"),
    [
        ([2], [0.5], [0], 0.5556),
        ([0], [0], [1], 1.0),
        ([10], [0.1], [0], 2.0),
        ([1], [0.95], [0], 1.0556),
        ([0], [0], [float("inf")], 1.0),
        ([1, 0], [0.1, 0.2], [0, 0], 0.2111),
        ([1, 0], [0.1, 0.1], [0, 1], 0.6),
        ([1, 15], [0.1, 0.2], [0, 0], 1.6),
        ([5], [0.1], [0], 1.0),
        ([2], [0.5], [0.1], 0.5556),
        ([100_000] + [0] * 99, [0.0] * 100, [0] * 100, 0.03),
    ],
)
def test_saturation(waiting: list[float], kv_usage: list[float], ages: list[float], expected: float) -> None:
    pool = pool_of(now=1.0, waiting=waiting, kv_usage=kv_usage, scraped_at=[1.0 - age for age in ages])
    assert DETECTOR.saturation(pool) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "scraped_at", "expected"),
    [
        ([1, 4], [0.1, 0.7], [1, 1], [True, True]),
        ([5], [0.8], [1], [True]),
        ([5], [0.9], [1], [True]),
        ([1, 7], [0.1, 0.1], [1, 1], [True, False]),
        ([1, 1], [0.5, 0.97], [1, 1], [True, False]),
        ([1, 1], [0.1, 0.1], [0, NEVER], [True, True]),
        ([1, 1], [0.1, 0.1], [1, NEVER], [True, False]),
        ([10, 1], [0.1, 0.99], [1, 1], [True, True]),
    ],
)
def test_as_a_filter(
    waiting: list[float], kv_usage: list[float], scraped_at: list[float], expected: list[bool]
) -> None:
    detector = UtilizationDetector(queue_depth=5, kv_cache_utilization=0.8, staleness=0.2, headroom=0.2)
    pool = pool_of(now=1.0, waiting=waiting, kv_usage=kv_usage, scraped_at=scraped_at)
    assert detector.filter(REQUEST, pool).tolist() == expected


def test_without_a_page_the_requests_in_flight_count() -> None:
    idle = pool_of(pageless=[1.0, 1.0], scraped_at=[NEVER, NEVER], inflight=[0, 0])
    assert DETECTOR.saturation(idle) == 0.0
    busy = pool_of(pageless=[1.0, 1.0], scraped_at=[NEVER, NEVER], inflight=[5, 100])
    assert DETECTOR.saturation(busy) == 2.0, "5 waiting are full, and none counts as more than three"
    unknown = pool_of(pageless=[1.0, 0.0], scraped_at=[NEVER, NEVER], inflight=[0, 0])
    assert DETECTOR.saturation(unknown) == 0.5, "a page that is only silent is full as before"


def test_who_has_no_page_passes_the_filter_by_what_is_in_flight() -> None:
    pool = pool_of(pageless=[1.0, 1.0, 0.0], scraped_at=[NEVER, NEVER, 100.0], inflight=[4, 5, 0])
    assert DETECTOR.filter(REQUEST, pool).tolist() == [True, False, True]


SPREADS = [(0, 0, 4, 8, 3), (0, 14, 14, 14, 8), (10, 10, 10, 10, 10), (1, 13, 14, 14, 8)]


@pytest.mark.parametrize("inflight", SPREADS)
def test_a_full_pool_is_full_and_a_third_is_a_third(inflight: tuple[int, ...]) -> None:
    """The mean of the endpoints' shares is 0.9999999999999999 for 50 requests of 50 that are spread unevenly."""
    detector = ConcurrencyDetector(InFlightLoadProducer(), requests=10)
    assert detector.saturation(pool_of(inflight=list(inflight))) == sum(inflight) / (10 * len(inflight))
