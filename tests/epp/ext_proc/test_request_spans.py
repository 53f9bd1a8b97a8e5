"""What becomes of a request is on its span, however it ends. Traces through a real Envoy: tests/epp/envoy/test_traces.py."""

import itertools
from typing import Any

import pytest

from epp.ext_proc.exchange import ExchangeError
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.request.control_headers import SERVED
from epp.request.rejection import OwnAnswer, Rejection
from epp.wire.messages.ext_proc_pb2 import Metadata
from tests.decoded_exchange import DecodedExchange
from tests.epp.ext_proc.test_deferral import Later
from tests.noted_spans import Noted, Notes

BUSY = Rejection(429, "saturated", "the pool is full", reason="rejected-saturated")


class Traced:
    def __init__(self, director: Any, messages: Any) -> None:
        self.notes = Notes()
        self.messages = messages
        self.exchange = DecodedExchange(director, ExchangeSettings(tracer=self.notes))
        self.exchange.on_answer(lambda _: None, lambda _: None)

    def ask(self) -> Any:
        self.exchange.ask(self.messages.headers(), 0)
        return self.exchange.ask(self.messages.body(b"{}", end_of_stream=True), 0)

    def ended(self, cause: str = "reset") -> tuple[Noted, Noted]:
        """The request's span and that of its orchestration; all spans have ended."""
        self.exchange.close(cause, 9)
        assert all(span.ends for span in self.notes.spans)
        assert [span.name for span in self.notes.spans[:2]] == [
            "gateway.request",
            "gateway.request_orchestration",
        ]
        return self.notes.spans[0], self.notes.spans[1]


@pytest.fixture
def traced(director: Any, messages: Any) -> Traced:
    return Traced(director, messages)


def test_a_pick_that_is_answered(traced: Traced) -> None:
    traced.ask()
    traced.exchange.ask(traced.messages.response_headers("200"), 1)
    request, _ = traced.ended()
    assert request.failure is None
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["llm_d.epp.endpoint"] == "10.0.0.1:8000"


def test_another_worker_than_the_picked_one_failed(traced: Traced) -> None:
    traced.ask()
    served = Metadata()
    served.filter_metadata["envoy.lb"].update({SERVED: "10.0.0.2:8000"})
    traced.exchange.ask(traced.messages.response_headers("502", served), 1)
    request, _ = traced.ended()
    assert request.failure == "HTTP 502"
    assert request.attributes["llm_d.epp.endpoint.served"] == "10.0.0.2:8000"


def test_a_refusal(traced: Traced, director: Any) -> None:
    director.outcome = BUSY
    traced.ask()
    for span in traced.ended():
        assert span.failure == "rejected-saturated"
        assert span.attributes["error.type"] == "saturated"


def test_a_fault_of_a_plugin_is_told_with_its_trace(traced: Traced, director: Any) -> None:
    director.outcome = KeyError("a plugin")
    with pytest.raises(ExchangeError):
        traced.ask()
    assert traced.exchange.trace is not None
    for span in traced.ended("fault"):
        assert (span.failure, span.attributes["error.type"]) == ("the director failed", "KeyError")


def test_an_answer_of_the_pickers_own(traced: Traced, director: Any) -> None:
    director.outcome = OwnAnswer(b"{}")
    traced.ask()
    request, _ = traced.ended()
    assert (request.failure, request.attributes["http.response.status_code"]) == (None, 200)


def test_a_client_that_leaves(traced: Traced) -> None:
    traced.ask()
    request, orchestration = traced.ended("reset")
    assert request.failure == "the stream ended before an answer: reset"
    assert orchestration.failure is None


def test_a_request_that_waits_and_is_refused(traced: Traced, director: Any) -> None:
    later = director.outcome = Later()
    traced.ask()
    assert [span.ends for span in traced.notes.spans] == [0, 0]
    later.settle(BUSY, 5)
    assert {span.failure for span in traced.ended()} == {"rejected-saturated"}


def test_a_request_that_is_taken_back(traced: Traced, director: Any, picking: Any) -> None:
    pick = director.outcome = picking("10.0.0.1:8000")
    pick.request.priority = -1
    traced.ask()
    assert pick.evict(BUSY, 3)
    request, _ = traced.ended()
    assert request.failure == "rejected-saturated"


@pytest.mark.parametrize("kind", ["request_headers", "request_body"])
@pytest.mark.parametrize("stray", [True, False])
def test_the_traceparent_is_a_header_of_the_routed_request(
    director: Any, messages: Any, kind: str, stray: bool
) -> None:
    exchange = DecodedExchange(director, ExchangeSettings(tracer=Notes()))
    mode = "BUFFERED" if kind == "request_body" else "FULL_DUPLEX_STREAMED"
    sent = {"tracestate": "a=1"} if stray else {}
    answers = exchange.ask(messages.headers(sent, mode=mode), 0)
    answers = list(itertools.chain(answers, exchange.ask(messages.body(b"{}", end_of_stream=True), 0)))
    (routed,) = [one for one in answers if getattr(one, kind).response.HasField("header_mutation")]
    mutation = getattr(routed, kind).response.header_mutation
    set_headers = {option.header.key: option.header.raw_value for option in mutation.set_headers}
    assert set_headers == {
        "x-gateway-destination-endpoint": b"10.0.0.1:8000",
        "traceparent": b"00-00000000000000000000000000000001-0000000000000001-01",
    }
    assert list(mutation.remove_headers) == (["tracestate"] if stray else [])
    assert routed.dynamic_metadata.fields["envoy.lb"]
