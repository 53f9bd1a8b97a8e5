"""An admission that lets requests wait, through the exchange: who goes when, and how waiting ends."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from discovery import InstanceRemovedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool, Mask
from epp.ext_proc.exchange import ExchangeError
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.request.body import MemoryBudget
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.plugin import AdmissionController
from epp.scheduling.waiting import Dequeued, WaitingRequest
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.decoded_exchange import DecodedExchange, read
from tests.epp.endpoints.test_datastore import instance
from tests.epp.scheduling.fifo import Fifo
from tests.epp.scheduling.test_director import NOW, load, store_of
from tests.epp.scheduling.test_director import director as directing

DESTINATION = "x-gateway-destination-endpoint"


class Ear:
    """A `QueueObserver` that writes down."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def queued(self, request: InferenceRequest, now: float) -> None:
        self.heard.append(("queued", request.request_id, now))

    def dequeued(self, request: InferenceRequest, how: Dequeued, waited: float, now: float) -> None:
        self.heard.append((how.value, request.request_id, waited, now))

    def turned_away(self, request: InferenceRequest, rejection: Rejection, now: float) -> None:
        self.heard.append(("turned away", request.request_id, rejection.reason))


class Client:
    """One request's exchange, and what it was answered."""

    def __init__(
        self, picker: "Picker", name: str, messages: Any, model: str, headers: Mapping[str, str]
    ) -> None:
        self.said: list[ProcessingResponse] = []
        self.faults: list[ExchangeError] = []
        self.exchange = DecodedExchange(picker.director, ExchangeSettings(), budget=picker.memory)
        self.exchange.on_answer(lambda answers: self.said.extend(read(answers)), self.faults.append)
        self.exchange.ask(messages.headers({"x-request-id": name, **headers}), picker.now)
        body = json.dumps({"model": model, "prompt": name}).encode()
        self.said += self.exchange.ask(messages.body(body, end_of_stream=True), picker.now)

    @property
    def destination(self) -> str | None:
        if not self.said or not self.said[0].HasField("request_headers"):
            return None
        (option,) = self.said[0].request_headers.response.header_mutation.set_headers
        return str(option.header.raw_value.decode())

    @property
    def status(self) -> int | None:
        return self.said[0].immediate_response.status.code if self.said else None

    @property
    def reason(self) -> str | None:
        return self.reasons[0]

    @property
    def reasons(self) -> list[str | None]:
        """Of each answer."""
        said = [answer.immediate_response.headers.set_headers for answer in self.said]
        found = [{option.header.key: option.header.raw_value.decode() for option in one} for one in said]
        return [one.get("x-llm-d-request-dropped-reason") for one in found]


class Picker:
    """A director, and whoever gives its admission its turns."""

    def __init__(
        self, store: Datastore, admission: AdmissionController, make: Callable[..., Client], **director: Any
    ) -> None:
        self.store = store
        self.now = NOW
        self.memory = MemoryBudget(2**20)
        self.director: Director = directing(store, admission=admission, **director)
        self.ear = self.director.waiting.observer = Ear()
        self.woken = False
        self.due: float | None = None
        self.director.waiting.wake = self._wake
        self._make = make

    def _wake(self) -> None:
        self.woken = True

    def ask(self, name: str, model: str = "m", **headers: str) -> Client:
        return self._make(self, name, model, {key.replace("_", "-"): value for key, value in headers.items()})

    def turns(self) -> None:
        """As the server does, but for the clock."""
        while self.woken or (self.due is not None and self.due <= self.now):
            self.woken = False
            self.due = self.director.dispatch(self.now)


def client_of(messages: Any) -> Callable[..., Client]:
    return lambda it, name, model, headers: Client(it, name, messages, model, headers)


@pytest.fixture
def picker(messages: Any) -> Callable[..., Picker]:
    def open_picker(store: Datastore, admission: AdmissionController, **director: Any) -> Picker:
        return Picker(store, admission, client_of(messages), **director)

    return open_picker


def test_what_waits_goes_in_order_when_requests_are_released(picker: Any) -> None:
    it = picker(store_of("", ""), Fifo(2))
    clients = [it.ask(str(number)) for number in range(5)]
    it.turns()
    assert [client.destination is not None for client in clients] == [True, True, False, False, False]
    assert it.memory.held > 0
    for number in range(3):
        it.now += 1
        clients[number].exchange.close("end", it.now)
        assert clients[2 + number].destination is None, "it has its turn later, not within the release"
        it.turns()
        assert clients[2 + number].destination is not None
        assert [it.store.inflight(endpoint) for endpoint in it.store.endpoints] == [1, 1]
    assert len(it.director.waiting) == 0
    assert it.ear.heard == [
        *[("queued", name, NOW) for name in "234"],
        *[("dispatched", name, waited, NOW + waited) for name, waited in (("2", 1), ("3", 2), ("4", 3))],
    ]


def test_the_pool_is_read_anew(picker: Any) -> None:
    """The best endpoint of when it came is not the best of when it goes."""
    store = store_of("", "")
    load(store, 1, 3)
    it = picker(store, Fifo(1))
    first, second = it.ask("first"), it.ask("second")
    assert first.destination == "10.0.0.1:8000"
    load(store, 0, 5)
    load(store, 1, 0)
    first.exchange.close("end", it.now)
    it.turns()
    assert second.destination == "10.0.0.2:8000"


def test_a_load_that_falls_wakes_the_admission(picker: Any) -> None:
    class UnlessWaiting(Fifo):
        def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
            return not self.queue and not candidates.waiting.any()

        def _has_room(self, waiting: WaitingRequest, now: float) -> bool:
            return not waiting.candidates(now).waiting.any()

    store = store_of("")
    load(store, 0, 3)
    it = picker(store, UnlessWaiting(1))
    client = it.ask("one")
    it.turns()
    load(store, 0, 2)
    assert it.woken
    it.turns()
    assert client.destination is None
    load(store, 0, 0)
    it.turns()
    assert client.destination == "10.0.0.1:8000"
    load(store, 0, 7)
    assert not it.woken, "nobody waits, nobody listens"
    assert store.on_load_change == store.on_release == []


def test_a_client_that_leaves_gives_up_its_place(picker: Any) -> None:
    fifo = Fifo(1)
    it = picker(store_of(""), fifo)
    first, gone, last = (it.ask(name) for name in ("first", "gone", "last"))
    it.now += 2
    gone.exchange.close("reset", it.now)
    assert [waiting.request.request_id for waiting in fifo.queue] == ["last"]
    held = it.memory.held
    first.exchange.close("end", it.now)
    it.turns()
    assert gone.said == []
    assert last.destination is not None
    assert it.memory.held <= held
    assert ("abandoned", "gone", 2, NOW + 2) in it.ear.heard
    last.exchange.close("end", it.now)
    assert it.memory.held == 0
    assert len(it.director.waiting) == 0


def test_a_drain_refuses_what_waits_and_what_would_have_to(picker: Any) -> None:
    fifo = Fifo(1)
    it = picker(store_of(""), fifo)
    first, *others = (it.ask(str(number)) for number in range(3))
    it.now += 1
    it.director.waiting.drain(it.now)
    others.append(it.ask("late"))
    for client in others:
        assert (client.status, client.reason) == (503, "rejected-shutting-down")
        assert client.exchange.state.name == "OVER"
    assert first.destination is not None
    assert not fifo.queue
    it.turns()
    first.exchange.close("end", it.now)
    assert it.ask("room").destination is not None, "who need not wait is served to the end"
    assert [word[:2] for word in it.ear.heard] == [
        ("queued", "1"), ("queued", "2"), ("refused", "1"), ("refused", "2"), ("turned away", "late")
    ]  # fmt: skip


def test_workers_that_go_while_a_request_waits_are_told_to_its_client(picker: Any) -> None:
    store = store_of("", "")
    it = picker(store, Fifo(1))
    first, second, third = (it.ask(name) for name in ("first", "second", "third"))
    store.apply(InstanceRemovedEvent(instance("w0"), "deleted"))
    it.turns()
    first.exchange.close("end", it.now)
    it.turns()
    assert second.destination == "10.0.0.2:8000"
    store.apply(InstanceRemovedEvent(instance("w1"), "deleted"))
    it.turns()
    assert (third.status, third.reason) == (503, "rejected-no-endpoints")
    assert ("refused", "third", 0, NOW) in it.ear.heard


def test_a_request_that_waited_too_long_is_expired_on_time(picker: Any) -> None:
    it = picker(store_of(""), Fifo(1, ttl=5))
    first, second = it.ask("first"), it.ask("second")
    it.now += 3
    third = it.ask("third")
    it.turns()
    assert it.due == NOW + 5
    it.now = NOW + 5
    it.turns()
    assert (second.status, second.reason, third.said) == (429, "rejected-ttl-expired", [])
    assert it.due == NOW + 8
    first.exchange.close("end", it.now)
    it.turns()
    assert third.destination is not None
    assert it.due is None
    assert it.ear.heard[-2:] == [("expired", "second", 5, NOW + 5), ("dispatched", "third", 2, NOW + 5)]


class Failing(Fifo):
    """Holds all, and fails in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__(0)
        self.where = where

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        if self.where == "enqueue":
            raise ZeroDivisionError
        super().enqueue(waiting, now)

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        if self.where == "withdraw":
            raise ZeroDivisionError
        super().withdraw(waiting, now)

    def dispatch(self, now: float) -> float | None:
        if self.where == "dispatch":
            raise ZeroDivisionError
        return super().dispatch(now)


def test_a_fault_of_the_admission_keeps_nobody_waiting(picker: Any) -> None:
    it = picker(store_of(""), Failing("dispatch"))
    clients = [it.ask(name) for name in "ab"]
    it.turns()
    for client in clients:
        assert [str(fault) for fault in client.faults] == ["the director failed: ZeroDivisionError"]
    assert len(it.director.waiting) == 0
    with pytest.raises(ExchangeError, match="ZeroDivisionError"):
        picker(store_of(""), Failing("enqueue")).ask("c")


def test_an_admission_that_cannot_forget_does_not_keep_a_stream_open(picker: Any) -> None:
    it = picker(store_of(""), Failing("withdraw"))
    client = it.ask("a")
    client.exchange.close("reset", it.now)
    assert it.memory.held == 0
    assert len(it.director.waiting) == 0
    it.turns()


def test_an_admission_may_make_room_by_refusing_another(picker: Any) -> None:
    class Newest(Fifo):
        def enqueue(self, waiting: WaitingRequest, now: float) -> None:
            while self.queue:
                self.queue.popleft().refuse(Rejection(429, "full", "another came"), now)
            super().enqueue(waiting, now)

    it = picker(store_of(""), Newest(1))
    first, second, third = (it.ask(name) for name in ("first", "second", "third"))
    assert second.status == 429
    first.exchange.close("end", it.now)
    it.turns()
    assert third.destination is not None


def test_a_plugin_that_fails_for_one_fails_for_nobody_else(picker: Any) -> None:
    class FailsForOne:
        def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
            if request.request_id == "second":
                raise ZeroDivisionError
            return np.ones(len(pool), dtype=np.bool_)

    it = picker(store_of(""), Fifo(1), filters=(FailsForOne(),))
    first, second, third = (it.ask(name) for name in ("first", "second", "third"))
    first.exchange.close("end", it.now)
    it.turns()
    assert [str(fault) for fault in second.faults] == ["the director failed: ZeroDivisionError"]
    assert third.destination is not None
