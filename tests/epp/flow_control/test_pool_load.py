"""The saturation that decides about dispatch: pages, what was sent since, and what of it is known when pages are late."""

import math

import pytest

from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool
from epp.endpoints.load import Load
from epp.flow_control.pool_load import PoolLoad
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.saturation import SaturationDetector, UtilizationDetector
from tests.epp.scheduling.test_director import NOW, store_of

UTILIZATION = UtilizationDetector()
CONCURRENCY = ConcurrencyDetector(InFlightLoadProducer(), requests=10)


def page(store: Datastore, number: int, now: float = NOW, **load: float) -> None:
    published = {"waiting": 0.0, "running": 0.0, "kv_usage": 0.0} | load
    store.observe(store.endpoints[number], Load(**published), now)


def send(store: Datastore, number: int, count: int = 1) -> None:
    for _ in range(count):
        store.reserve(store.endpoints[number])


def end(store: Datastore, number: int, count: int = 1) -> None:
    for _ in range(count):
        store.release(store.endpoints[number])


def measured(store: Datastore, now: float = NOW, detector: SaturationDetector = UTILIZATION) -> float:
    load = PoolLoad(detector, store.pool)
    load.measure(now)
    return load.saturation


def test_what_the_pages_say_is_what_the_detector_says() -> None:
    store = store_of("", "", "")
    page(store, 0, waiting=2)
    page(store, 1, kv_usage=0.6)
    page(store, 2, waiting=9)
    expected = UTILIZATION.saturation(store.pool(NOW))
    assert expected == pytest.approx((0.4 + 0.75 + 1.8) / 3)
    assert measured(store) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("endpoints", "expected"), [(1, 3.0), (2, 0.75), (3, 2 / 3), (4, 2.5 / 4), (5, 0.6), (10, 0.3)]
)
def test_one_wrong_page_does_not_fill_a_pool_that_is_idle(endpoints: int, expected: float) -> None:
    store = store_of(*[""] * endpoints)
    for number in range(endpoints):
        page(store, number, waiting=100_000.0 if number == 0 else 0.0)
    assert measured(store) == pytest.approx(expected)


def test_what_was_sent_since_the_page_counts_as_waiting() -> None:
    store = store_of("", "")
    send(store, 0, 3)
    assert UTILIZATION.saturation(store.pool(NOW)) == 0
    assert measured(store) == pytest.approx(0.6 / 2)
    page(store, 0, running=3)
    assert measured(store) == 0, "the page shows them, and nothing waits"
    end(store, 0, 3)
    send(store, 0, 2)
    assert measured(store) == pytest.approx(0.4 / 2), (
        "those that ended do not hide those that were sent since"
    )
    end(store, 0, 2)
    assert measured(store) == 0, "what was sent since the page and has ended does not wait"


@pytest.mark.parametrize("full", [{"waiting": 5.0}, {"kv_usage": 0.99}])
def test_a_stale_page_counts_for_nothing_but_what_was_running(full: dict[str, float]) -> None:
    store = store_of("")
    send(store, 0, 8)
    page(store, 0, running=6, **full)
    assert measured(store) >= 1
    late = NOW + 1
    assert measured(store, late) == pytest.approx(2 / 5), "two more are in flight than it could run"
    end(store, 0, 8)
    assert measured(store, late) == 0


def test_a_worker_without_a_page_counts_by_what_is_in_flight() -> None:
    store = store_of("")
    store.record_failed_scrape(store.endpoints[0], has_page=False)
    send(store, 0, 4)
    assert measured(store) == pytest.approx(4 / 5)


def test_workers_that_get_no_requests_do_not_count() -> None:
    store = store_of("", "")
    page(store, 0, waiting=5)
    assert measured(store) == 0.5
    store.set_lost(store.endpoints[1], lost=True)
    assert measured(store) == 1
    store.set_lost(store.endpoints[0], lost=True)
    assert measured(store) == 0.5, "if nobody is reachable, requests go to all"


@pytest.mark.parametrize("detector", [UTILIZATION, CONCURRENCY])
def test_requests_are_counted_until_the_pool_is_full(detector: SaturationDetector) -> None:
    """From whatever it was when it was measured: sums of shares are not exact."""
    store = store_of("", "", "", "", "", "", "")
    room = 7 * (5 if detector is UTILIZATION else 10)
    for before in range(room):
        load = PoolLoad(detector, store.pool)
        load.measure(NOW)
        for sent in range(room - before):
            assert load.saturation < 1, (before, sent)
            load.sent()
        assert load.saturation >= 1, before
        send(store, before % 7)


def test_where_prefill_and_decode_are_apart_the_fuller_decides() -> None:
    store = Datastore()
    for number, role in enumerate(("prefill", "decode", "decode", "decode", "encode", "prefill-decode", "?")):
        labels = {"llm-d.ai/role": role}
        instance = Instance(f"w{number}", "ns", "c", f"10.0.0.{number + 1}", 8000, "a", labels=labels)
        store.apply(InstanceAddedEvent(instance), {})
        page(store, number)
    assert measured(store) == 0
    page(store, 0, waiting=5)
    assert measured(store) == pytest.approx(0.5), "prefill: one of two is full"
    page(store, 4, waiting=5)
    page(store, 6, waiting=5)
    assert measured(store) == pytest.approx(0.5), "no request goes there"
    for number in (1, 2, 3):
        page(store, number, waiting=5)
    assert measured(store) == pytest.approx(0.75), "decode: three of four"
    load = PoolLoad(UTILIZATION, store.pool)
    assert load.by_stage(NOW) == pytest.approx({"prefill": 0.5, "decode": 0.75, "effective": 0.75})
    load.measure(NOW)
    for _ in range(3):
        load.sent()
    assert load.saturation >= 1, "they may need the smaller stage"


def test_a_pool_that_is_not_apart_decodes() -> None:
    store = store_of("")
    page(store, 0, waiting=1)
    load = PoolLoad(UTILIZATION, store.pool)
    assert load.by_stage(NOW) == pytest.approx({"decode": 0.2, "effective": 0.2})
    assert PoolLoad(UTILIZATION, Datastore().pool).by_stage(NOW) == {"effective": 1.0}


class Strange:
    """A detector of somebody else's."""

    def __init__(self, saturation: float) -> None:
        self.says = saturation

    counts_in_flight = False

    def saturation(self, pool: EndpointPool) -> float:
        return self.says


def test_another_detector_is_asked_after_each_request() -> None:
    load = PoolLoad(Strange(0.25), store_of("").pool)
    load.measure(NOW)
    assert (load.saturation, load.counts) == (0.25, False)
    load.sent()
    assert load.saturation >= 1


def test_a_saturation_that_makes_no_sense_is_full() -> None:
    assert measured(store_of(""), detector=Strange(math.nan)) == 1


def test_a_measurement_serves_as_long_as_nothing_was_published_or_shortly() -> None:
    store = store_of("")
    load = PoolLoad(UTILIZATION, store.pool)
    assert not load.serves(store.pool(NOW).state, NOW)
    load.measure(NOW)
    assert load.serves(store.pool(NOW).state, NOW + 60)
    page(store, 0, waiting=1)
    assert load.serves(store.pool(NOW).state, NOW + 0.01)
    assert not load.serves(store.pool(NOW).state, NOW + 0.03)
    load.measure(NOW)
    load.forget()
    assert not load.serves(store.pool(NOW).state, NOW)


def test_it_is_known_when_a_page_becomes_stale() -> None:
    store = store_of("", "")
    page(store, 1, now=NOW + 0.1)
    load = PoolLoad(UTILIZATION, store.pool)
    assert load.changes_at(NOW + 0.1) == pytest.approx(NOW + UTILIZATION.staleness)
    assert load.changes_at(NOW + 0.25) == pytest.approx(NOW + 0.1 + UTILIZATION.staleness)
    assert PoolLoad(CONCURRENCY, store.pool).changes_at(NOW + 60) == math.inf
