import random

import pytest

from dispatcher.broker.contract.message import Claim, ErrorCode, Fault, Request
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.delivery.verdict import (
    DEFAULT_LIMITS,
    AttemptLimits,
    Finish,
    Retry,
    fault_of,
    judge,
    outcome_of,
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
