"""Outcomes that come by the data plane's log: what an entry says, a ledger against a model of it, and when an answer began."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.ext_proc.access_log_entry import (
    ANSWERED,
    BODY_TAG,
    CLIENT_LEFT,
    CUT,
    MOST_ENTRIES,
    PICK_KEY,
    PICK_NAMESPACE,
    REPORT_INTERVAL,
    REPORTED_SHARE,
    read_entries,
    read_outcome,
)
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.outcome_ledger import FIRST_LEASE, LEASE, LOST, OutcomeLedger
from epp.ext_proc.request_report import RequestReport
from epp.outliers.settings import Failure
from epp.request.rejection import UnreadableError
from epp.wire.messages.access_log_pb2 import Address, HTTPAccessLogEntry, StreamAccessLogsMessage
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.decoded_exchange import DecodedExchange, read
from tests.epp.conftest import FakeDirector, Message, make_pick, metadata

NAME = "0123456789abcdef"


TOKEN = NAME + "0" * 12


def of_metadata(key: str, value: str) -> bytes:
    """The field of an entry's common properties that has all metadata of the request."""
    written = metadata(PICK_NAMESPACE, {key: value}).SerializeToString()
    return b"\x8a\x01" + bytes([len(written)]) + written


def entry(
    token: str,
    status: int = 200,
    *flags: str,
    under_way: bool = False,
    first_byte: float | None = 0.5,
    body: str | None = None,
    duration: float | None = 2.0,
    served: tuple[str, int] | None = ("10.0.0.1", 8000),
    attempts: int = 1,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    written = HTTPAccessLogEntry()
    common = written.common_properties
    common.MergeFromString(of_metadata(PICK_KEY, token))
    common.upstream_request_attempt_count = attempts
    common.access_log_type = 5 if under_way else 6
    if served is not None:
        where = Address()
        where.socket_address.address, where.socket_address.port_value = served
        common.upstream_remote_address = where.SerializeToString()
    if first_byte is not None:
        common.time_to_first_upstream_rx_byte.FromNanoseconds(int(first_byte * 1e9))
    if body is not None:
        common.custom_tags[BODY_TAG] = body
    if duration is not None and not under_way:
        common.duration.FromNanoseconds(int(duration * 1e9))
    for flag in flags:
        setattr(common.response_flags, flag, True)
    written.response.response_headers.update(headers or {})
    if status:
        written.response.response_code.value = status
    return written.SerializeToString()


def message(*entries: bytes) -> bytes:
    written = StreamAccessLogsMessage()
    written.http_logs.log_entry.extend(entries)
    return written.SerializeToString()


class Stage:
    """A ledger, and the director to whom it reports."""

    def __init__(self, most: int = 1000) -> None:
        self.director = FakeDirector()
        self.heard_late: list[float] = []
        self.ledger = OutcomeLedger(NAME, self.heard_late.append, most)

    def pick(self, now: float = 0.0, *destinations: str, waited: float = 0.0) -> Any:
        pick = make_pick(*(destinations or ("10.0.0.1:8000",)))
        self.ledger.expect(RequestReport(self.director, None), pick, now - waited, now)
        return pick

    def hear(self, *entries: bytes, now: float) -> None:
        self.ledger.receive(message(*entries), now)


def test_an_entry_ends_its_pick_and_no_other() -> None:
    stage = Stage()
    first, second = stage.pick(), stage.pick()
    assert stage.heard_late == [REPORT_INTERVAL] * 2
    assert first.token != second.token
    stage.hear(entry(first.token), now=2.05)
    assert stage.director.released == [first]
    assert (stage.director.statuses, stage.director.reported) == ([200], ["10.0.0.1:8000"])
    assert (first.responded_at, first.ended_at, first.ended_by) == (0.5, 2.0, ANSWERED)
    assert stage.ledger.delay == pytest.approx(0.05)
    assert len(stage.ledger) == 1
    stage.pick()
    assert stage.heard_late[-1] == pytest.approx(REPORT_INTERVAL + 0.05), "the log is late by so much more"


def test_a_log_says_that_a_prefill_worker_did_not_do_its_part() -> None:
    stage = Stage()
    pick = stage.pick()
    said = {"x-adsum-prefill-fallback": "timeout", "x-other": "unreachable"}
    stage.hear(entry(pick.token, headers=said), now=2.05)
    assert (pick.stages, stage.director.statuses) == (
        "; the decode worker computed the prompt: timeout",
        [200],
    )


def test_a_request_under_way_is_heard_of_once_and_ends_later() -> None:
    stage = Stage()
    pick = stage.pick()
    stage.hear(entry(pick.token, 0, under_way=True, first_byte=None), now=5.0)
    assert (stage.director.statuses, stage.director.released) == ([], [])
    stage.hear(entry(pick.token, under_way=True), now=10.0)
    stage.hear(entry(pick.token, under_way=True), now=15.0)
    assert (stage.director.statuses, stage.director.released) == ([200], [])
    stage.hear(entry(pick.token, duration=17.0), now=17.1)
    assert (stage.director.statuses, stage.director.released) == ([200], [pick])
    assert pick.ended_at == 17.0


@pytest.mark.parametrize(
    ("status", "flags", "first_byte", "told", "failure", "cause"),
    [
        (200, (), 0.5, 200, None, ANSWERED),
        (500, (), 0.5, 500, None, ANSWERED),
        (503, ("upstream_connection_failure",), None, 503, Failure.CONNECT, ANSWERED),
        (503, ("no_healthy_upstream",), None, 503, Failure.CONNECT, ANSWERED),
        (502, ("upstream_connection_termination",), None, 502, Failure.RESET, ANSWERED),
        (502, ("upstream_remote_reset",), None, 502, Failure.RESET, ANSWERED),
        (502, ("upstream_protocol_error",), 0.5, 502, Failure.RESET, ANSWERED),
        (504, ("upstream_request_timeout", "upstream_remote_reset"), None, 504, Failure.TIMEOUT, ANSWERED),
        (0, ("downstream_connection_termination",), None, 0, None, CLIENT_LEFT),
        (0, ("downstream_remote_reset",), None, 0, None, CLIENT_LEFT),
        (200, ("downstream_connection_termination",), 0.5, 200, None, CLIENT_LEFT),
        (200, ("upstream_connection_termination",), 0.5, 200, None, CUT),
        (503, (), None, 0, None, ANSWERED),  # Envoy for a reason of its own
        (408, (), None, 0, None, ANSWERED),
        (70_000, (), 0.5, 0, None, ANSWERED),
    ],
)
def test_who_answered_and_why_it_ended(
    status: int,
    flags: tuple[str, ...],
    first_byte: float | None,
    told: int,
    failure: Failure | None,
    cause: str,
) -> None:
    outcome = read_outcome(entry(TOKEN, status, *flags, first_byte=first_byte))
    assert outcome is not None
    assert (outcome.status, outcome.failure, outcome.cause) == (told, failure, cause)


def test_an_attempt_elsewhere_is_told_of() -> None:
    stage = Stage()
    pick = stage.pick(0.0, "10.0.0.1:8000", "10.0.0.2:8000")
    stage.hear(entry(pick.token, served=("10.0.0.2", 8000), attempts=2), now=3.0)
    assert (stage.director.reported, stage.director.retries) == (["10.0.0.2:8000"], [2])


def test_an_ipv6_address_has_brackets_and_numbers_that_make_no_sense_are_unknown() -> None:
    outcome = read_outcome(entry(TOKEN, served=("fd00::1", 8000), first_byte=-5.0, duration=1e9))
    assert outcome is not None
    assert (outcome.served_by, outcome.first_byte, outcome.duration) == ("[fd00::1]:8000", None, None)


def test_a_duration_longer_than_the_pick_is_old_ends_now() -> None:
    stage = Stage()
    pick = stage.pick(100.0)
    stage.hear(entry(pick.token, duration=50.0), now=101.0)
    assert pick.ended_at == 101.0


@pytest.mark.parametrize("bytes_", [b"\xff", b"\x12\x05ab", b"\x0a\xff\xff\xff\xff\x0f"])
def test_a_message_that_is_none(bytes_: bytes) -> None:
    with pytest.raises(UnreadableError):
        read_entries(bytes_)
    assert read_outcome(bytes_) is None


def test_an_entry_without_a_pick_or_with_an_address_that_is_none_says_nothing() -> None:
    assert read_outcome(b"") is None
    other = HTTPAccessLogEntry()
    other.common_properties.MergeFromString(of_metadata("x", TOKEN))
    assert read_outcome(other.SerializeToString()) is None
    assert read_outcome(entry("t")) is None
    other = HTTPAccessLogEntry.FromString(entry(TOKEN))
    other.common_properties.upstream_remote_address = b"\xff"
    assert read_outcome(other.SerializeToString()) is None


def test_a_message_has_so_many_entries_at_most() -> None:
    assert len(read_entries(message(*[b""] * (MOST_ENTRIES + 1)))) == MOST_ENTRIES


def wait(stage: Stage, since: float, seconds: float) -> None:
    for second in range(1, int(seconds) + 1):
        stage.ledger.tick(since + second)


def test_what_nothing_more_is_heard_of_is_released() -> None:
    stage = Stage()
    silent, heard = stage.pick(), stage.pick()
    stage.hear(*(entry(one.token, under_way=True) for one in (silent, heard)), now=1.0)
    wait(stage, 0.0, 5.0)
    stage.hear(entry(heard.token, under_way=True), now=5.0)
    wait(stage, 5.0, LEASE - 5.0)
    assert stage.director.released == []
    wait(stage, LEASE, 1.0)
    assert stage.director.released == [silent]
    assert (silent.ended_by, stage.ledger.lost, len(stage.ledger)) == (LOST, 1, 1)
    stage.hear(entry(silent.token), now=LEASE + 2)
    assert stage.ledger.entries["unknown"] == 1
    assert stage.director.released == [silent]


def test_what_nothing_was_ever_heard_of_is_released_soon_if_the_process_had_stood_still() -> None:
    """Envoy took the request elsewhere. One that waited in a queue has no first entry: it comes before the pick."""
    stage = Stage()
    stage.ledger.tick(0.0)
    usual = stage.pick(1.0)
    first, queued = stage.pick(2.0), stage.pick(2.0, waited=REPORT_INTERVAL)
    stage.ledger.tick(2.0)
    second, heard = stage.pick(2.5), stage.pick(2.5)
    stage.hear(entry(heard.token, under_way=True), now=3.0)
    wait(stage, 2.0, FIRST_LEASE + 1.0)
    assert stage.director.released == [first, second]
    wait(stage, FIRST_LEASE + 3.0, LEASE - FIRST_LEASE)
    assert stage.director.released == [first, second, usual, queued, heard]


def test_a_process_that_stood_still_reads_first() -> None:
    stage = Stage()
    stage.pick()
    stage.pick(waited=REPORT_INTERVAL)
    stage.ledger.tick(0.0)
    stage.ledger.tick(100.0)
    assert stage.ledger.lost == 0
    wait(stage, 100.0, LEASE)
    assert stage.ledger.lost == 2


def test_the_oldest_goes_if_there_are_too_many() -> None:
    stage = Stage(most=2)
    picks = [stage.pick() for _ in range(3)]
    assert stage.director.released == picks[:1]
    assert len(stage.ledger) == 2


def test_a_plugin_that_fails_costs_no_other_entry(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    first, second = stage.pick(), stage.pick()
    released = stage.director.release

    def fails(pick: Any, now: float) -> None:
        if pick is first:
            raise RuntimeError("no")
        released(pick, now)

    stage.director.release = fails  # type: ignore[method-assign]
    stage.hear(entry(first.token), entry(second.token), now=3.0)
    assert stage.director.released == [second]
    assert "RuntimeError" in caplog.text


Step = tuple[str, int, int, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pick", "under way", "end", "foreign", "forget", "wait"]),
        st.integers(0, 20),
        st.sampled_from([0, 200, 503]),
        st.floats(0.0, 2.9),
    ),
    max_size=80,
)


@given(steps=STEPS)
@settings(deadline=None)
def test_a_ledger_is_like_its_model(steps: list[Step]) -> None:
    """Entries are lost, doubled, of others and late. Each pick is released once, and never before its entry or its lease."""
    stage = Stage()
    now, picks, late_at = 0.0, [], float("-inf")
    # the model: what is awaited, when something was heard last, and how long that holds
    heard: dict[int, tuple[float, float]] = {}
    ended: list[int] = []
    forgotten = set()
    stage.ledger.tick(now)
    for what, number, code, seconds in steps:
        if what == "pick":
            waited = number % 3 * REPORT_INTERVAL
            heard[len(picks)] = now, FIRST_LEASE if now - late_at < 1.0 and not waited else LEASE
            picks.append(stage.pick(now, waited=waited))
        elif what == "wait":
            late_at = now + seconds if now + seconds - now > 1.5 else late_at
            now += seconds
            stage.ledger.tick(now)
            for late in [one for one, (at, lease) in heard.items() if now - at >= lease]:
                del heard[late]
                ended.append(late)
        elif what == "foreign":
            stage.hear(entry(f"{NAME[::-1]}{number:012x}"), now=now)
        elif number < len(picks):
            if what == "forget":
                known = heard.pop(number, None) is not None
                assert stage.ledger.forget(picks[number]) is known
                if known:
                    forgotten.add(number)
                continue
            stage.hear(entry(picks[number].token, code, under_way=what == "under way"), now=now)
            if number in heard:
                del heard[number]
                if what == "under way":
                    heard[number] = now, LEASE
                else:
                    ended.append(number)
    assert len(stage.ledger) == len(heard)
    released = [picks.index(pick) for pick in stage.director.released]
    assert sorted(released) == sorted(ended)
    assert len(set(released)) == len(released)
    assert not forgotten & set(released)
    stage.ledger.close(now)
    released = [picks.index(pick) for pick in stage.director.released]
    assert sorted(released) == [at for at in range(len(picks)) if at not in forgotten]


def picked(director: Any, messages: Any, ledger: OutcomeLedger | None) -> tuple[Exchange, ProcessingResponse]:
    exchange = Exchange(director, ExchangeSettings())
    exchange.await_outcome(ledger)
    exchange.feed(messages.headers(), 1.0)
    return exchange, read(exchange.feed(messages.body(b"{}", end_of_stream=True), 2.0))[0]


def test_a_stream_that_ends_with_the_request_releases_nothing(director: Any, messages: Any) -> None:
    ledger = OutcomeLedger(NAME)
    exchange, answer = picked(director, messages, ledger)
    named = answer.dynamic_metadata.fields
    pick = director.outcome
    assert named[PICK_NAMESPACE].struct_value.fields[PICK_KEY].string_value == pick.token
    assert named["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value
    assert exchange.concluded
    exchange.close("reset", 3.0)
    assert director.released == []
    ledger.receive(message(entry(pick.token, duration=5.0)), 7.0)
    assert director.released == [pick]
    assert pick.ended_at == 6.0


def test_an_entry_may_come_before_the_end_of_the_stream(director: Any, messages: Any) -> None:
    ledger = OutcomeLedger(NAME)
    exchange, _ = picked(director, messages, ledger)
    ledger.receive(message(entry(director.outcome.token)), 4.0)
    exchange.close("reset", 5.0)
    assert director.released == [director.outcome]


@pytest.mark.parametrize("cause", ["fault", "refused"])
def test_a_stream_that_fails_releases_its_pick(director: Any, messages: Any, cause: str) -> None:
    ledger = OutcomeLedger(NAME)
    exchange, _ = picked(director, messages, ledger)
    exchange.close(cause, 3.0)
    assert director.released == [director.outcome]
    assert len(ledger) == 0


def test_response_headers_that_come_all_the_same_are_used(director: Any, messages: Any) -> None:
    ledger = OutcomeLedger(NAME)
    exchange, _ = picked(director, messages, ledger)
    exchange.feed(messages.response_headers("200"), 3.0)
    exchange.close("reset", 4.0)
    assert (director.statuses, director.released) == ([200], [director.outcome])
    ledger.receive(message(entry(director.outcome.token)), 5.0)
    assert director.released == [director.outcome]


def test_without_a_log_the_answer_names_no_pick(director: Any, messages: Any) -> None:
    exchange, answer = picked(director, messages, None)
    assert PICK_NAMESPACE not in answer.dynamic_metadata.fields
    exchange.close("reset", 3.0)
    assert director.released == [director.outcome]


def told(stage: Stage, now: float, *, asked: bool = True) -> Any:
    return stage.ledger.describe(now, asked=asked)["outcomes"]


def test_the_way_in_use_is_told() -> None:
    stage = Stage()
    assert told(stage, 1.0, asked=False)["by"] is None, "it may be either"
    assert told(stage, 1.0)["by"] == "ext_proc"
    assert told(stage, 1.0)["in_flight_until"].startswith("the end of Envoy's ext_proc stream")
    pick = stage.pick()
    assert told(stage, 1.0)["delay_seconds"] is None
    stage.hear(entry(pick.token), now=2.25)
    assert told(stage, 5.25) == {
        "by": "access_log",
        "in_flight_until": "the end of the answer, as Envoy's access log tells",
        "logs": 0,
        "awaited": 0,
        "delay_seconds": 0.25,
        "silent_seconds": 3.0,
        "lost": 0,
        "without": [],
    }


def test_chance_ends_no_lease() -> None:
    assert (1 - REPORTED_SHARE / 100) ** (LEASE / REPORT_INTERVAL) < 1e-6


def test_what_needs_answers_is_warned_of_once_a_pick_awaits_the_log(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.ledger.without = ("eviction",)
    stage.ledger.tick(0.0)
    assert caplog.text == ""
    stage.pick()
    for now in (1.0, 2.0):
        stage.ledger.tick(now)
    assert caplog.text.count("Envoy sends no answers, so this does not work: eviction") == 1
    assert told(stage, 2.0)["without"] == ["eviction"]
    renamed = make_pick("10.0.0.1:8000")
    renamed.request.rewritten_from = "gpt-4"
    stage.ledger.expect(RequestReport(stage.director, None), renamed, 2.0, 2.0)
    for now in (3.0, 4.0):
        stage.ledger.tick(now)
    assert (
        caplog.text.count("does not work: eviction, the client's name of a model in answers of another one")
        == 1
    )


def test_a_log_that_tells_of_no_pick_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(most=1)
    for _ in range(22):
        stage.pick()
    stage.ledger.tick(0.0)
    stage.ledger.tick(1.0)
    assert caplog.text.count("let each picker have an --epp of its own") == 1


class Awaited:
    seconds = 1.0

    def came(self, at: float, now: float, answered_at: float) -> None: ...

    def ended(self) -> None: ...


def answered(mode: str, *, awaited: bool = True) -> tuple[FakeDirector, DecodedExchange]:
    """The response headers came at 1."""
    pick = make_pick("10.0.0.1:8000")
    pick.request.awaited = Awaited() if awaited else None
    director = FakeDirector(pick)
    exchange = DecodedExchange(director, ExchangeSettings())
    exchange.ask(Message.headers(response_mode=mode), 0)
    exchange.ask(Message.body(b"{}", end_of_stream=True), 0)
    exchange.ask(Message.response_headers(), 1)
    return director, exchange


def test_the_first_piece_of_a_body_is_the_beginning() -> None:
    director, exchange = answered("FULL_DUPLEX_STREAMED")
    assert director.first_bytes == []
    for now in (2, 3):
        exchange.ask(Message.response_body(b"data: x", end_of_stream=False), now)
    assert director.first_bytes == [2]


@pytest.mark.parametrize(("awaited", "told"), [(True, [1]), (False, [])])
def test_without_bodies_the_headers_are(awaited: bool, told: list[float]) -> None:
    director, _ = answered("NONE", awaited=awaited)
    assert director.first_bytes == told


def test_the_log_tells_when_it_came() -> None:
    stage = Stage()
    pick = stage.pick(10.0)
    pick.request.awaited = Awaited()
    stage.hear(entry(pick.token, first_byte=0.5), now=13.0)
    assert stage.director.first_bytes == [10.5]


@pytest.mark.parametrize(
    ("bodies", "came"),
    [
        ((None, None), 0.5),  # no tag, so the headers count
        (("=", "=1500000"), 1.5),
        (("=1500000", "=1600000"), 1.5),
        (("=", "="), None),
        (("=-", "=1e6"), None),
        (("=" + "9" * 14, "=" + "9" * 5000), None),
    ],
)
def test_the_first_byte_of_the_body_counts_where_it_is_told(
    bodies: tuple[str | None, str | None], came: float | None
) -> None:
    stage = Stage()
    pick = stage.pick()
    pick.request.awaited = Awaited()
    stage.hear(entry(pick.token, under_way=True, body=bodies[0]), now=1.9)
    stage.hear(entry(pick.token, body=bodies[1]), now=2.0)
    assert stage.director.statuses == [200]
    assert stage.director.first_bytes[:1] == ([] if came is None else [came])
