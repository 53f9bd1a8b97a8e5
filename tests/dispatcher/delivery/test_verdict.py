"""What becomes of a request after an answer: its verdict, its wait, and the target it is sent to."""

import contextlib
import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.broker.contract.message import Claim, ErrorCode, Fault, Request
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer, parse_retry_after
from dispatcher.delivery.route import IllegalRequestError, Route, allowed_caller_headers, operator_headers
from dispatcher.delivery.verdict import (
    DEFAULT_LIMITS,
    AttemptLimits,
    Finish,
    Retry,
    exponential_backoff,
    fault_of,
    judge,
    outcome_of,
    retry_delay,
)
from dispatcher.gates.gate import Outcome

NOW = 1_000_000
RNG = random.Random(1)


def claim(seconds: float, attempt: int = 0) -> Claim:
    return Claim(Request("r", b"{}", NOW + int(seconds * 1000), token="t"), "f", 1, attempt, NOW)


@pytest.mark.parametrize("status", [200, 201, 204, 302, 400, 404, 422, 499])
def test_16_what_is_final(status: int) -> None:
    verdict = judge(claim(60, attempt=2), GatewayAnswer(status, b"x"), NOW, RNG)
    assert isinstance(verdict, Finish)
    result = verdict.result
    assert (result.status_code, result.payload, result.error_code) == (status, b"x", None)
    assert (result.attempts, result.token, result.finished_ms) == (3, "t", NOW)


@pytest.mark.parametrize(
    "answer",
    [
        GatewayAnswer(429, b""),
        GatewayAnswer(500, b""),
        GatewayAnswer(503, b""),
        GatewayAnswer(599, b""),
        NoAnswer("reset"),
    ],
)
def test_15_what_is_tried_again(answer: GatewayAnswer | NoAnswer) -> None:
    verdict = judge(claim(300), answer, NOW, RNG)
    assert isinstance(verdict, Retry)
    assert 2000 <= verdict.delay_ms < 4000


def test_16_retry_after_counts_for_429_and_5xx() -> None:
    for status in (429, 503):
        verdict = judge(claim(100), GatewayAnswer(status, b"", retry_after=30.0), NOW, RNG)
        assert isinstance(verdict, Retry)
        assert 30_000 <= verdict.delay_ms < 37_500


@pytest.mark.parametrize("seconds", [0.9, 0, -5])
def test_16_no_whole_second_left(seconds: float) -> None:
    verdict = judge(claim(seconds), GatewayAnswer(429, b"busy", 7.0, "rejected-saturated"), NOW, RNG)
    assert isinstance(verdict, Finish)
    assert (verdict.result.status_code, verdict.result.payload) == (429, b"busy")
    assert verdict.result.error_code is ErrorCode.DEADLINE_EXCEEDED
    assert "HTTP 429, rejected-saturated" in verdict.result.error_message
    verdict = judge(claim(seconds), NoAnswer("reset"), NOW, RNG)
    assert isinstance(verdict, Finish)
    assert (verdict.result.status_code, verdict.result.error_code) == (0, ErrorCode.DEADLINE_EXCEEDED)


def test_what_would_end_the_same_is_not_tried_again() -> None:
    verdict = judge(claim(60), NoAnswer("too large", final=True), NOW, RNG)
    assert isinstance(verdict, Finish)
    assert verdict.result.error_code is ErrorCode.INFERENCE_ERROR


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (GatewayAnswer(200, b""), Outcome.ACCEPTED),
        (GatewayAnswer(429, b"", None, "rejected-saturated"), Outcome.OVERLOADED),
        (GatewayAnswer(429, b""), Outcome.OTHER),
        (GatewayAnswer(503, b"", None, "rejected-saturated"), Outcome.OVERLOADED),
        (GatewayAnswer(503, b""), Outcome.OTHER),
        (GatewayAnswer(500, b""), Outcome.OTHER),
        (GatewayAnswer(404, b""), Outcome.OTHER),
        (NoAnswer("reset"), Outcome.OTHER),
    ],
)
def test_12_what_a_gate_learns(answer: GatewayAnswer | NoAnswer, outcome: Outcome) -> None:
    assert outcome_of(answer) is outcome


RESET = b"upstream connect error or disconnect/reset before headers. "


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (GatewayAnswer(500, b""), Fault.FAILED),
        (GatewayAnswer(503, b""), Fault.FAILED),
        (NoAnswer("no answer within 5 s"), Fault.FAILED),
        (NoAnswer("the connection ended", disconnected=True), Fault.DISCONNECTED),
        (GatewayAnswer(503, RESET + b"reset reason: connection termination"), Fault.DISCONNECTED),
        (
            GatewayAnswer(503, RESET + b"retried and the latest reset reason: remote reset"),
            Fault.DISCONNECTED,
        ),
        # no worker got these
        (NoAnswer("no connection", reached=False), None),
        (GatewayAnswer(429, b""), None),
        (GatewayAnswer(503, b"", None, "rejected-saturated"), None),
        (GatewayAnswer(503, b"no healthy upstream"), None),
        (GatewayAnswer(503, RESET + b"reset reason: remote connection failure, transport failure"), None),
    ],
)
def test_which_attempts_count(answer: GatewayAnswer | NoAnswer, fault: Fault | None) -> None:
    assert fault_of(answer) is fault
    verdict = judge(claim(300), answer, NOW, RNG)
    assert isinstance(verdict, Retry)
    assert verdict.fault is fault


def given_up(answer: GatewayAnswer | NoAnswer, limits: AttemptLimits = DEFAULT_LIMITS) -> tuple[int, str]:
    """After how many attempts `answer` is final within a day, and with which dead letter."""
    now_ms, failures, disconnects = NOW, 0, 0
    for attempt in range(10_000):
        tried = Claim(Request("r", b"{}", NOW + 86_400_000), "f", 1, attempt, NOW, failures, disconnects)
        verdict = judge(tried, answer, now_ms, RNG, limits)
        if isinstance(verdict, Finish):
            return verdict.result.attempts, verdict.dead_letter
        assert isinstance(verdict, Retry)
        failures += verdict.fault is not None
        disconnects += verdict.fault is Fault.DISCONNECTED
        now_ms += verdict.delay_ms + 5_000
    raise AssertionError


def test_a_request_that_kills_its_worker_is_given_up() -> None:
    attempts, letter = given_up(NoAnswer("the connection ended", disconnected=True))
    assert attempts == 5
    assert letter.startswith("given up after 5 attempts whose connection ended before an answer")
    assert given_up(GatewayAnswer(500, b"x"))[0] == 20
    assert given_up(GatewayAnswer(500, b"x"), AttemptLimits(3, 2))[0] == 3
    assert given_up(NoAnswer("ended", disconnected=True), AttemptLimits(3, 9))[0] == 3


def test_what_no_worker_got_is_tried_until_the_deadline() -> None:
    for answer in (GatewayAnswer(429, b"", 60.0), NoAnswer("no connection", reached=False)):
        attempts, letter = given_up(answer)
        assert attempts > 1000
        assert letter == ""


SEEDS = range(200)


@pytest.mark.parametrize(
    ("attempt", "remaining", "least", "most"),
    [
        (0, 300, 1, 2),
        (1, 300, 2, 4),
        (2, 300, 4, 8),
        (3, 300, 8, 16),
        (4, 300, 16, 32),
        (10, 300, 30, 60),
        (10_000, 300, 30, 60),
        (10, 3, 1.5, 3),
        (1, 1, 0.5, 1),
    ],
)
def test_16_the_backoff_table(attempt: int, remaining: int, least: float, most: float) -> None:
    delays = [exponential_backoff(attempt, remaining, random.Random(seed)) for seed in SEEDS]
    assert all(least <= delay < most for delay in delays)
    assert max(delays) - min(delays) > 0.8 * (most - least)


@pytest.mark.parametrize("remaining", [0, -1, -100])
def test_no_time_no_backoff(remaining: int) -> None:
    assert exponential_backoff(1, remaining, random.Random(1)) == 0
    assert retry_delay(1, remaining, 5.0, random.Random(1)) is None


@pytest.mark.parametrize(
    ("retry_after", "attempt", "remaining", "least", "most"),
    [
        (30, 1, 100, 30, 37.5),
        (1, 6, 300, 30, 60),
        (30, 1, 5, 2, 5),
        (300, 1, 40, 20, 25),
        (None, 1, 300, 2, 4),
        (0, 1, 300, 2, 4),
    ],
)
def test_16_the_retry_after_table(
    retry_after: float | None, attempt: int, remaining: int, least: float, most: float
) -> None:
    delays = [retry_delay(attempt, remaining, retry_after, random.Random(seed)) for seed in SEEDS]
    assert all(delay is not None and least <= delay < most for delay in delays)


@given(
    attempt=st.integers(1, 2000),
    remaining=st.integers(1, 10**6),
    retry_after=st.none() | st.floats(0, 1e9),
    seed=st.integers(),
)
def test_a_retry_comes_before_the_deadline(
    attempt: int, remaining: int, retry_after: float | None, seed: int
) -> None:
    delay = retry_delay(attempt, remaining, retry_after, random.Random(seed))
    assert delay is not None
    assert 0 < delay < remaining


@pytest.mark.parametrize("retry_after", [None, 30.0])
def test_16_a_thousand_that_were_rejected_together_spread(retry_after: float | None) -> None:
    rng = random.Random(16)
    delays = [retry_delay(1, 300, retry_after, rng) for _ in range(1000)]
    bins: dict[int, int] = {}
    for delay in delays:
        assert delay is not None
        bins[int(delay * 10)] = bins.get(int(delay * 10), 0) + 1
    # 100 ms of the shortest wait, [2, 4) s, are 5 % on average: no bin may stand out of that
    assert max(bins.values()) <= (1000 * 0.05 if retry_after else 1000 * 0.085)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        (" 7 ", 7),
        ("-5", None),
        ("abc", None),
        ("", None),
        ("1.5", None),
        ("١٢", None),
        ("9" * 5000, None),
        ("Wed, 31 Dec 1969 07:28:00 GMT", 0),
        ("Thu, 01 Jan 1970 00:33:40 GMT", 20),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("1 Jan 99999999999 00:00:00", None),
        ("nan", None),
        ("1e300", None),
    ],
)
def test_retry_after_as_sent(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, now=2000.0) == seconds


@given(st.text(max_size=40))
def test_any_retry_after_is_read_or_ignored(value: str) -> None:
    seconds = parse_retry_after(value, now=0.0)
    assert seconds is None or seconds >= 0


ROUTE = Route(
    paths=("/v1/chat/completions", "/v1/files/"),
    headers={"authorization": "Bearer operator", "x-team": "batch"},
    objective="batch-low",
    caller_headers=("x-trace",),
)


def request(**changes: object) -> Request:
    return Request(**({"id": "r1", "payload": b"{}", "deadline_ms": 1, "tenant": "acme"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("", "/v1/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions?stream=false", "/v1/chat/completions?stream=false"),
        ("/v1/files/a-b_c", "/v1/files/a-b_c"),
    ],
)
def test_29_paths_that_the_target_allows(asked: str, sent: str) -> None:
    assert ROUTE.request_path(asked) == sent


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/v1/chat/completions",
        "http://evil.example/v1/chat/completions",
        "@evil.example/",
        "v1/chat/completions",
        "/v1/files/../chat/completions",
        "/v1/files/%2e%2e/admin",
        "/v1/files/%252e%252e/admin",
        "/v1/files/..",
        "/v1/files//x",
        "/v1/files/%2f%2fevil.example",
        "/v1/files/a\\b",
        "/v1/files/%5c..",
        "/v1/chat/completions\r\nhost: evil.example",
        "/v1/files/%0d%0ahost:%20evil",
        "/v1/files/%00",
        "/v1/chat/completions HTTP/1.1",
        "/v1/chat/completions#x",
        "/v1/chat/completions/",
        "/v1/chat",
        "/V1/chat/completions",
        "/admin",
        "/",
        "/v1/files/é",
    ],
)
def test_29_paths_that_lead_elsewhere(path: str) -> None:
    with pytest.raises(IllegalRequestError, match="path"):
        ROUTE.request_path(path)


@given(st.text(max_size=30) | st.from_regex(r"/v1/files/[/.%a-f0-9\\]{0,20}", fullmatch=True))
@example("/v1/files/.%2e/x")
def test_29_no_path_leaves_its_folder(path: str) -> None:
    with contextlib.suppress(IllegalRequestError):
        sent = ROUTE.request_path(path)
        assert sent.startswith(("/v1/chat/completions", "/v1/files/"))
        assert ".." not in sent.split("/")
        assert re.fullmatch(r"[\x21-\x7e]+", sent)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "HOST", "Content-Length", "Transfer-Encoding", "Connection", "Cookie", "TE", "Expect",
        "x-llm-d-inference-objective", "X-LLM-D-Inference-Fairness-Id", "x-gateway-inference-objective",
        "x-gateway-destination-endpoint", "X-Request-Id", "Idempotency-Key", "x-dispatch-attempt",
        "x-envoy-upstream-rq-timeout-ms", "X-Forwarded-For", "X-Team", "Accept-Encoding", "x-prefiller-host-port",
        "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port", "X-Original-Url",
        "x-rewrite-url", "X-HTTP-Method-Override", "x-anything",
    ],
)  # fmt: skip
def test_29_a_caller_overrides_nothing_of_the_operators(name: str) -> None:
    headers = ROUTE.request_headers(request(headers={name: "caller"}), attempt=0, timeout_ms=1000)
    assert "caller" not in headers.values()


def test_what_is_sent_with_a_request() -> None:
    given = {"X-Trace": "t", "Content-Type": "application/x-own", "OpenAI-Project": "p", "traceparent": "00"}
    asked = request(headers=given, objective="critical")
    headers = ROUTE.request_headers(asked, attempt=2, timeout_ms=1500)
    assert headers == {
        "content-type": "application/x-own",
        "openai-project": "p",
        "traceparent": "00",
        "x-trace": "t",
        "authorization": "Bearer operator",
        "x-team": "batch",
        "x-llm-d-inference-objective": "batch-low",
        "x-llm-d-inference-fairness-id": "acme",
        "x-request-id": "r1",
        "idempotency-key": asked.token,
        "x-dispatch-attempt": "3",
        "x-envoy-upstream-rq-timeout-ms": "1500",
    }


def test_an_objective_of_the_request_where_the_queue_has_none() -> None:
    headers = Route().request_headers(request(objective="sheddable"), attempt=0, timeout_ms=1)
    assert headers["x-llm-d-inference-objective"] == "sheddable"
    assert "x-llm-d-inference-objective" not in Route().request_headers(request(), attempt=0, timeout_ms=1)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": "b\r\nhost: evil"},
        {"x-a": "b\nc"},
        {"x-a": "\x00"},
        {"x-a": "€"},
        {"x-a\r\n": "b"},
        {"x a": "b"},
        {"": "b"},
        {"x:a": "b"},
        {"é": "b"},
        {"x-a": "b" * 9000},
        {f"x-{number}": "" for number in range(65)},
        {"authorization": "a\r\nb"},
    ],
)
def test_headers_that_no_request_may_have(headers: dict[str, str]) -> None:
    with pytest.raises(IllegalRequestError, match="header"):
        ROUTE.request_headers(request(headers=headers), attempt=0, timeout_ms=1)


@given(st.text(min_size=1), st.text(min_size=1))
@example("\ud800", "é\r\n")
def test_every_id_and_tenant_can_be_sent(id: str, tenant: str) -> None:
    headers = ROUTE.request_headers(request(id=id, tenant=tenant), attempt=0, timeout_ms=1)
    for name in ("x-request-id", "x-llm-d-inference-fairness-id"):
        assert re.fullmatch(r"[\x21-\x7e]{1,256}", headers[name])


@pytest.mark.parametrize("name", ["Content-Length", "connection", "Transfer-Encoding", "a b", ""])
def test_headers_that_no_operator_sets(name: str) -> None:
    with pytest.raises(IllegalRequestError, match="cannot be set"):
        operator_headers({name: "1"})


def test_headers_of_an_operator() -> None:
    assert operator_headers({"Authorization": "Bearer x", "Host": "pool.example"}) == {
        "authorization": "Bearer x",
        "host": "pool.example",
    }


def test_29_a_token_that_is_no_token_of_ours_ends_no_header() -> None:
    request = Request("r", b"{}", 1, token="t\r\nx-llm-d-inference-fairness-id: other\r\n\r\n€")
    sent = Route().request_headers(request, 0, 1000)
    assert "\r" not in sent["idempotency-key"]
    sent["idempotency-key"].encode("ascii")


@pytest.mark.parametrize("name", ["Authorization", "host", "X-Envoy-Retry-On", "x-llm-d-x", "a b", ""])
def test_headers_that_no_configuration_leaves_to_callers(name: str) -> None:
    with pytest.raises(IllegalRequestError, match="no caller may set"):
        allowed_caller_headers([name])
