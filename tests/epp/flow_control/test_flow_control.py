"""Flow control through the exchange: what waits, what goes next, and how each wait ends."""

import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from discovery import Instance, InstanceRemovedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.flow_control.controller import FlowController, FlowControlSwitch
from epp.flow_control.fairness import RoundRobin
from epp.flow_control.usage_limits import StaticUsageLimit
from epp.request.subset import Subset
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector, ConcurrencyParameters
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.pick import Pick
from epp.scheduling.saturation import UtilizationDetector
from tests.epp.flow_control.flow_settings import band_settings, flow_settings
from tests.epp.scheduling.endpoint_pools import add_worker
from tests.epp.scheduling.test_admission import Client, Picker, client_of
from tests.epp.scheduling.test_director import NOW, store_of

ROOM = 5
"""Requests that an idle worker gets between two pages: the detector's queue depth."""
OBJECTIVES = {"high": 10, "low": -1, "lower": -2}


class Held(Picker):
    """A picker with flow control, and one call for each thing that happens to it."""

    admission: FlowController

    def objective(self, name: str, objective: str = "", fairness_id: str = "") -> Client:
        headers = {"x_gateway_inference_objective": objective, "x_gateway_inference_fairness_id": fairness_id}
        return self.ask(name, **{key: value for key, value in headers.items() if value})

    def fill(self) -> list[Client]:
        """As many requests as go at once."""
        clients = [self.ask(f"first {number}") for number in range(ROOM * len(self.store.endpoints))]
        assert all(client.destination for client in clients)
        return clients

    def end(self, client: Client) -> None:
        client.exchange.close("end", self.now)
        self.turns()

    def page(self, waiting: float = 0, kv_usage: float = 0.0, running: float = 0) -> None:
        for endpoint in self.store.endpoints:
            self.store.observe(endpoint, Load(waiting=waiting, running=running, kv_usage=kv_usage), self.now)
        self.turns()


def add_idle(store: Datastore, now: float, model: str = "") -> None:
    add_worker(store, document={"model": {"name": model}} if model else {}, is_seen=False)
    store.observe(store.endpoints[-1], Load(waiting=0, running=0, kv_usage=0), now)


def remove_workers(store: Datastore) -> None:
    for endpoint in store.endpoints:
        instance = Instance(endpoint.id, "ns", "c", endpoint.address, 8000, endpoint.incarnation)
        store.apply(InstanceRemovedEvent(instance, "deleted"))


@pytest.fixture
def picker(messages: Any) -> Callable[..., Held]:
    def open_picker(workers: int = 1, **settings: Any) -> Held:
        store = store_of(*[""] * workers)
        admission = FlowController(flow_settings(**settings), UtilizationDetector(), store.pool)
        it = Held(store, admission, client_of(messages), objectives=OBJECTIVES)
        it.admission = admission
        return it

    return open_picker


def is_taken_back(client: Client) -> bool:
    """Its worker had it, and it was answered all the same."""
    return len(client.said) > 1 and client.said[-1].HasField("immediate_response")


def went(clients: list[Client]) -> list[bool]:
    return [client.destination is not None for client in clients]


def test_what_finds_the_pool_full_waits_and_goes_when_another_ends(picker: Any) -> None:
    it = picker(2)
    first = it.fill()
    waiting = [it.ask(f"later {number}") for number in range(3)]
    it.turns()
    assert went(waiting) == [False] * 3
    for number in range(3):
        it.end(first[number])
        assert went(waiting) == [True] * (number + 1) + [False] * (2 - number)
    assert it.memory.held > 0
    for client in first + waiting:
        client.exchange.close("end", it.now)
    assert it.memory.held == 0


def test_the_higher_priority_goes_first_whenever_it_came(picker: Any) -> None:
    it = picker()
    first = it.fill()
    waiting = {name: it.objective(name, name) for name in ("lower", "low", "none", "high")}
    it.turns()
    for number, name in enumerate(("high", "none", "low", "lower")):
        it.end(first[number])
        assert [one for one, client in waiting.items() if client.destination] == [
            one for one in waiting if one in ("high", "none", "low", "lower")[: number + 1]
        ], name


def test_one_that_comes_does_not_overtake_its_equals(picker: Any) -> None:
    """Even if there is room for it now: those that wait have their turn first."""
    it = picker()
    first = it.fill()
    waiting = it.ask("waits")
    it.turns()
    first[0].exchange.close("end", it.now)
    late, high = it.ask("came later"), it.objective("came last", "high")
    assert high.destination is not None, "nothing of its priority waits, and there is room"
    it.turns()
    assert went([waiting, late]) == [False, False]
    it.end(first[1])
    assert went([waiting, late]) == [True, False]


def test_a_page_that_says_there_is_room_dispatches(picker: Any) -> None:
    it = picker()
    it.page(waiting=ROOM)
    waiting = [it.ask(f"{number}") for number in range(8)]
    it.turns()
    assert went(waiting) == [False] * 8
    it.now += 0.05
    it.page(waiting=ROOM - 2)
    assert went(waiting) == [True] * 2 + [False] * 6, "what was sent since the page counts"
    it.now += 0.05
    it.page(waiting=0)
    assert went(waiting) == [True] * ROOM + [False] * 3, "those in flight that no page shows count too"
    it.now += 0.05
    it.page(running=ROOM)
    assert went(waiting) == [True] * 8


def test_stale_pages_do_not_stop_the_queue(picker: Any) -> None:
    it = picker()
    it.page(waiting=ROOM, kv_usage=0.99)
    waiting = [it.ask(f"{number}") for number in range(ROOM + 1)]
    it.turns()
    assert went(waiting) == [False] * (ROOM + 1)
    assert it.due is not None
    assert it.due < NOW + 1, "nothing happens when a page becomes stale, so the clock says so"
    it.now = it.due + 0.001
    it.turns()
    assert went(waiting) == [True] * ROOM + [False], "what is in flight counts"
    it.end(waiting[0])
    assert went(waiting) == [True] * (ROOM + 1)


def test_who_waited_for_the_time_to_live_is_refused(picker: Any) -> None:
    it = picker(request_ttl=5.0)
    it.fill()
    it.page(waiting=ROOM)
    early = it.ask("early")
    it.now += 2
    it.page(waiting=ROOM)
    late = it.ask("late")
    it.turns()
    it.now = NOW + 5
    it.page(waiting=ROOM)
    assert (early.status, early.reason, late.said) == (429, "rejected-ttl-expired", [])
    it.now = NOW + 7
    it.page(waiting=ROOM)
    assert (late.status, late.reason) == (429, "rejected-ttl-expired")
    assert not it.admission.bands[0].waiting


def test_requests_wait_for_the_first_worker(picker: Any) -> None:
    it = picker(0)
    waiting = [it.ask(f"{number}") for number in range(3)]
    it.turns()
    assert went(waiting) == [False] * 3
    it.now += 59
    it.turns()
    add_idle(it.store, it.now)
    it.turns()
    assert went(waiting) == [True] * 3


def test_one_that_nobody_can_serve_takes_nobody_s_turn(picker: Any) -> None:
    it = picker(0)
    lost = [it.ask(f"{number}", model="other") for number in range(2 * ROOM)]
    served = [it.ask(f"served {number}", model="m") for number in range(ROOM)]
    add_idle(it.store, it.now, "m")
    it.turns()
    assert [client.status for client in lost] == [404] * (2 * ROOM)
    assert went(served) == [True] * ROOM


@pytest.mark.parametrize(("named", "status"), [([], None), (["10.0.0.1"], None), (["10.0.0.9"], 503)])
def test_an_empty_subset_of_an_empty_pool_forbids_no_worker_that_comes(
    picker: Any, named: list[str], status: int | None
) -> None:
    it = picker(0)
    body = b'{"model": "m", "prompt": "a"}'
    waiting = it.director.direct({":path": "/v1/completions"}, body, Subset.of(named), it.now)
    outcomes: list[Any] = []
    waiting.subscribe(lambda outcome, now: outcomes.append(outcome))
    add_idle(it.store, it.now)
    it.turns()
    (outcome,) = outcomes
    assert (None if isinstance(outcome, Pick) else outcome.status) == status


def test_without_a_worker_the_wait_ends_with_503(picker: Any) -> None:
    it = picker(0, no_endpoint_ttl=3.0, request_ttl=1.0)
    client = it.ask("waits")
    it.turns()
    assert it.due == NOW + 3
    it.now += 3
    it.turns()
    assert (client.status, client.reason) == (503, "rejected-no-endpoints")


def test_the_wait_counts_anew_when_the_first_worker_comes_or_the_last_one_goes(picker: Any) -> None:
    it = picker(0, no_endpoint_ttl=10.0, request_ttl=2.0)
    waiting = [it.ask(f"{number}") for number in range(ROOM + 2)]
    it.turns()
    it.now += 9
    add_idle(it.store, it.now)
    it.turns()
    assert went(waiting) == [True] * ROOM + [False] * 2
    it.now += 1.5
    it.page(waiting=ROOM)
    assert waiting[ROOM].said == []
    remove_workers(it.store)
    it.turns()
    it.now += 9.5
    it.turns()
    assert waiting[ROOM].said == []
    it.now += 0.5
    it.turns()
    assert (waiting[ROOM].status, waiting[ROOM].reason) == (503, "rejected-no-endpoints")


def test_a_pool_that_comes_and_goes_lets_nobody_wait_for_ever(picker: Any) -> None:
    it = picker(0, no_endpoint_ttl=3.0, request_ttl=2.0)
    client = it.objective("low", "low")
    it.turns()
    for _ in range(9):
        assert client.said == []
        add_idle(it.store, it.now)
        it.page(waiting=ROOM)  # others fill it
        it.now += 0.5
        remove_workers(it.store)
        it.turns()
        it.now += 0.5
    it.now += 1.0
    it.turns()
    assert (client.status, client.reason) == (503, "rejected-no-endpoints")


def test_a_full_queue_refuses(picker: Any) -> None:
    it = picker(bands={0: band_settings(max_requests=2)}, max_requests=3)
    it.fill()
    waiting = [it.ask(f"{number}") for number in range(2)]
    refused = it.ask("third")
    assert (refused.status, refused.reason) == (429, "rejected-saturated")
    assert it.objective("high", "high").said == []
    refused = it.objective("high too", "high")
    assert (refused.status, refused.reason) == (429, "rejected-saturated"), "all bands together are full"
    remove_workers(it.store)
    refused = it.ask("fourth")
    assert (refused.status, refused.reason) == (503, "rejected-no-endpoints")
    waiting[0].exchange.close("reset", it.now)
    assert it.ask("fifth").said == [], "who leaves gives its place at once"


def test_bytes_are_limited_too(picker: Any) -> None:
    it = picker(bands={0: band_settings(max_bytes=2000)})
    it.fill()
    assert it.ask("x" * 500).said == []
    refused = it.ask("y" * 500)
    assert (refused.status, refused.reason) == (429, "rejected-saturated")


def test_bytes_of_headers_are_limited_with_those_of_bodies(picker: Any) -> None:
    it = picker(bands={0: band_settings(max_bytes=1000)})
    it.fill()
    refused = it.ask("x", **{"x-large": "y" * 1000})
    assert (refused.status, refused.reason) == (429, "rejected-saturated")
    held = it.memory.held
    assert it.ask("x", **{"x-large": "y" * 500}).said == []
    assert it.memory.held - held > 500


def test_a_flow_of_huge_bodies_leaves_room_for_others(picker: Any) -> None:
    """Whether its band is full or all bands are; one of another band gives no way."""
    for limits in ({"default_band": band_settings(max_bytes=10_000, fairness=RoundRobin())},
                   {"default_band": band_settings(fairness=RoundRobin()), "max_bytes": 10_000}):  # fmt: skip
        it = picker(**limits)
        it.fill()
        huge = [it.objective("x" * 2100, fairness_id="a") for _ in range(2)]
        small = it.objective("x" * 1500, fairness_id="b")
        assert (small.said, huge[0].said) == ([], [])
        assert (huge[1].status, huge[1].reason) == (429, "evicted-queue-pressure")
        assert it.objective("x" * 2100, fairness_id="a").reason == "rejected-saturated"


@pytest.mark.parametrize("limits", [{"max_requests": 1}, {"bands": {0: band_settings(max_requests=1)}}])
def test_an_explained_request_is_refused_where_the_real_one_is(picker: Any, limits: dict[str, Any]) -> None:
    """Also while there is no endpoint."""
    it = picker(workers=0, **limits)
    headers = {":path": "/v1/completions"}
    body = b'{"model": "m", "prompt": "Hello"}'
    assert it.director.explain(headers, body, None, it.now).would_wait
    assert it.ask("first").said == []
    explained = it.director.explain(headers, body, None, it.now)
    real = it.ask("second")
    assert (explained.would_wait, explained.refused_status, explained.refused_reason) == (
        False,
        real.status,
        real.reason,
    )


def test_an_explained_request_is_refused_that_no_band_of_its_priority_would_take(picker: Any) -> None:
    """The band does not exist yet."""
    it = picker(default_band=band_settings(max_bytes=100))
    it.fill()
    headers = {":path": "/v1/completions", "x-gateway-inference-objective": "high"}
    body = json.dumps({"model": "m", "prompt": "x" * 100}).encode()
    explained = it.director.explain(headers, body, None, it.now)
    assert it.objective("x" * 100, "high").status == explained.refused_status == 429
    assert not explained.would_wait


def test_a_sheddable_request_makes_room_where_eviction_is_enabled(picker: Any) -> None:
    it = picker(max_requests=3, eviction=True)
    it.fill()
    low, lower, lower_and_later = (
        it.objective(*one) for one in (("a", "low"), ("b", "lower"), ("c", "lower"))
    )
    high = it.objective("d", "high")
    assert (lower_and_later.status, lower_and_later.reason) == (429, "evicted-queue-pressure")
    assert it.objective("e").said == []
    assert lower.status == 429
    assert it.objective("f", "low").status == 429, "it is sheddable itself"
    assert it.objective("g").said == []
    assert low.status == 429
    assert it.objective("h", "high").status == 429, "only what is sheddable makes room"
    assert high.said == []
    assert sum(len(band.waiting) for band in it.admission.bands) == 3


def test_who_left_leaves_no_prompt_in_memory(picker: Any) -> None:
    it = picker(request_ttl=5.0)
    it.fill()
    it.page(waiting=ROOM)
    asked = [it.ask(f"{number}") for number in range(4)]
    requests = [one.request for one in it.admission.bands[0].waiting.values()]
    assert all(request.prompt is not None for request in requests)
    asked[1].exchange.close("reset", it.now)
    it.now += 5
    it.page(waiting=ROOM)
    assert [client.status for client in asked] == [429, None, 429, 429]
    assert [request.prompt for request in requests] == [None] * 4


@pytest.fixture
def evicting(picker: Any) -> Callable[..., Held]:
    """A picker with `enableEviction`, whose detector counts four requests for each of its two workers."""

    def open_picker() -> Held:
        it: Held = picker(2)
        switch = FlowControlSwitch(it.director, it.store, 2**20)
        detector = ConcurrencyDetector(
            InFlightLoadProducer(), ConcurrencyParameters.model_construct(max_concurrency=4)
        )
        switch.use(flow_settings(eviction=True), detector, it.now)
        assert switch.controller is not None
        it.admission = switch.controller
        it.turns()
        return it

    return open_picker


def test_a_sheddable_request_is_taken_back_from_its_worker_for_one_that_waits(evicting: Any) -> None:
    it = evicting()
    names = [
        ("a", "lower"),
        ("b", "low"),
        ("c", "lower"),
        ("d", "low"),
        *[(f"{n}", "none") for n in range(4)],
    ]
    clients = {name: it.objective(name, objective) for name, objective in names}
    assert went(list(clients.values())) == [True] * 8
    waiting = [it.ask(f"waits {number}") for number in range(5)]
    taken_back = []
    for _ in range(6):
        it.turns()
        for name, client in clients.items():
            if is_taken_back(client) and name not in taken_back:
                refused = client.said[-1].immediate_response
                assert (refused.status.code, client.reasons[-1]) == (429, "evicted-priority")
                taken_back.append(name)
                it.end(client)
        it.now += 0.02
    assert taken_back == ["c", "a", "d", "b"], (
        "the lowest first, and of equal ones the one that was sent last"
    )
    assert went(waiting) == [True] * 4 + [False], "nothing is left that may be taken back"
    counts = it.admission.eviction.revocations
    assert (counts.issued, counts.confirmed, counts.timed_out) == ({0: 4}, 4, 0)


def test_nothing_is_taken_back_that_has_begun_to_answer_or_is_no_less_important(
    evicting: Any, messages: Any
) -> None:
    it = evicting()
    clients = [it.objective(f"{number}", "low") for number in range(8)]
    low = it.objective("low", "low")
    it.turns()
    assert all(len(client.said) == len(clients[0].said) for client in clients), "equals are left alone"
    low.exchange.close("reset", it.now)
    for client in clients:
        client.exchange.ask(messages.response_headers(), it.now)
    high = it.objective("high", "high")
    it.turns()
    assert not any(map(is_taken_back, clients))
    assert high.said == []
    it.end(clients[0])
    assert high.destination is not None


def test_a_decision_waits_for_what_the_last_one_freed(evicting: Any) -> None:
    it = evicting()
    clients = [it.objective(f"{number}", "low") for number in range(8)]
    for number in range(3):
        it.ask(f"waits {number}")
    it.turns()

    def taken_back() -> list[int]:
        return [number for number, client in enumerate(clients) if is_taken_back(client)]

    assert taken_back() == [7]
    it.now += 1
    it.turns()
    assert taken_back() == [7], "its stream has not ended"
    it.end(clients[7])
    assert taken_back() == [7]
    it.now += 0.02
    it.turns()
    assert taken_back() == [6, 7]
    it.now += 11
    it.turns()
    assert taken_back() == [5, 6, 7], "nobody said so, but it has ended long ago"


def test_nothing_remains_of_sheddable_requests_that_ended(evicting: Any) -> None:
    def picks() -> int:
        gc.collect()
        return sum(isinstance(one, Pick) for one in gc.get_objects())

    it, before = evicting(), picks()
    kept = [it.objective(f"{number}", "low") for number in range(4)]
    for number in range(200):
        it.end(it.objective(f"short {number}", "low"))
    assert picks() < before + 50
    for client in kept:
        it.end(client)
    del kept, client
    assert picks() <= before


def test_without_eviction_nothing_is_taken_back(picker: Any) -> None:
    it = picker()
    clients = [it.objective(f"{number}", "low") for number in range(ROOM)]
    it.objective("high", "high")
    it.turns()
    assert not any(map(is_taken_back, clients))


def test_a_drain_refuses_what_waits(picker: Any) -> None:
    it = picker()
    it.fill()
    waiting = it.ask("waits")
    it.director.waiting.drain(it.now)
    assert (waiting.status, waiting.reason) == (503, "rejected-shutting-down")
    assert sum(len(band.waiting) for band in it.admission.bands) == 0
    it.turns()


def test_a_usage_limit_keeps_room(picker: Any) -> None:
    it = picker(usage_limit=StaticUsageLimit(threshold=0.5))
    clients = [it.ask(f"{number}") for number in range(4)]
    it.turns()
    assert went(clients) == [True] * 3 + [False], "at 2 of 5 there is still room, at 3 of 5 there is none"


def test_bodies_that_wait_leave_memory_to_those_that_come(messages: Any) -> None:
    store = store_of("")
    it = Held(store, FlowController(flow_settings(), UtilizationDetector(), store.pool), client_of(messages))
    FlowControlSwitch(it.director, store, 2000).use(flow_settings(), UtilizationDetector(), it.now)
    it.turns()
    it.fill()
    assert it.ask("x" * 500).said == []
    refused = it.ask("y" * 100)
    assert (refused.status, refused.reason) == (429, "rejected-saturated")


def test_a_band_made_on_demand_goes_when_nobody_used_it_for_long(picker: Any) -> None:
    it = picker(bands={10: band_settings()})
    for name in ("high", "none", "low"):
        it.objective(name, name)
    assert [band.priority for band in it.admission.bands] == [10, 0, -1]
    for waiting in (1, 2):
        it.now += 400
        it.page(waiting)
        it.ask(f"another {waiting}")
    assert [band.priority for band in it.admission.bands] == [10, 0]


def test_flow_control_is_switched_on_changed_and_switched_off_while_requests_wait(messages: Any) -> None:
    store = store_of("")
    it = Held(store, FlowController(flow_settings(), UtilizationDetector(), store.pool), client_of(messages))
    switch = FlowControlSwitch(it.director, store, 2**20)
    switch.use(flow_settings(), UtilizationDetector(), it.now)
    it.turns()
    it.fill()
    waiting = [it.ask(f"{number}") for number in range(4)]
    it.turns()
    assert went(waiting) == [False] * 4
    bands = {0: band_settings(max_requests=1)}
    switch.use(
        flow_settings(bands=bands),
        UtilizationDetector.model_construct(queue_depth_threshold=ROOM + 1),
        it.now,
    )
    it.turns()
    assert went(waiting) == [True, False, False, False]
    assert it.ask("refused").status == 429
    switch.use(None, UtilizationDetector(), it.now)
    it.turns()
    assert went(waiting) == [True] * 4
    assert it.ask("another").destination is not None


def test_what_waits_when_it_is_switched_off_goes_in_turns(messages: Any) -> None:
    store = store_of("")
    it = Held(store, FlowController(flow_settings(), UtilizationDetector(), store.pool), client_of(messages))
    it.fill()
    waiting = [it.ask(f"{number}") for number in range(300)]
    FlowControlSwitch(it.director, store, 2**20).use(None, UtilizationDetector(), it.now)
    it.director.use_admission(None)
    counts = []
    due: float | None = it.now
    while due is not None:
        due = it.director.dispatch(it.now)
        counts.append(sum(went(waiting)))
    assert counts == [128, 256, 300]
    assert went(waiting)[:256] == [True] * 256, "the first that came are the first to go"
