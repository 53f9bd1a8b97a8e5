"""The share of the pool that is in flight is exact, however the requests are spread."""

import numpy as np
import pytest

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Column, Endpoint, EndpointPool
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer

SPREADS = [(0, 0, 4, 8, 3), (0, 14, 14, 14, 8), (10, 10, 10, 10, 10), (1, 13, 14, 14, 8)]


@pytest.mark.parametrize("inflight", SPREADS)
def test_a_full_pool_is_full_and_a_third_is_a_third(inflight: tuple[int, ...]) -> None:
    """The mean of the endpoints' shares is 0.9999999999999999 for 50 requests of 50 that are spread unevenly."""
    detector = ConcurrencyDetector(InFlightLoadProducer(), requests=10)
    assert detector.saturation(make_pool(*inflight)) == sum(inflight) / (10 * len(inflight))


def make_pool(*inflight: int) -> EndpointPool:
    numbers = np.repeat(NO_NUMBERS, len(inflight), axis=1)
    numbers[Column.INFLIGHT] = inflight
    endpoints = [
        Endpoint(id=f"e{at}", incarnation="a", address="10.0.0.1", port=8000 + at, metrics_port=8000)
        for at in range(len(inflight))
    ]
    return EndpointPool(endpoints, numbers, [NO_ADAPTERS] * len(inflight), now=0.0)
