"""Decides what an answer of a target means (pure): the result of the request, or a retry after a delay.

The rules and the formulas of the delay are those of the worker of llm-d's Go processor, so that both spread their retries
alike; it does not retry connection errors and timeouts, we do. `remaining` is the time to the deadline in whole seconds,
rounded down, as there.
"""

import random
import re
from dataclasses import dataclass
from typing import Final

from dispatcher.broker.contract.message import Claim, ErrorCode, Fault, Result
from dispatcher.broker.contract.validation import error_payload
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.gates.gate import Outcome

MAX_BACKOFF = 60.0
"""Seconds of one backoff, at most."""
BASE_BACKOFF = 2.0
"""Seconds; doubles with every attempt."""
_MAX_EXPONENT = 30
"""2^30 times the base is past any deadline; a larger exponent would overflow."""


def exponential_backoff(attempt: int, remaining: int, rng: random.Random) -> float:
    """Uniform in [T/2, T), T = min(60, remaining, 2 * 2^attempt); 0 where nothing remains."""
    if remaining <= 0:
        return 0.0
    # "Equal jitter": half is fixed, so that a target gets a pause; half is random, so that requests which failed together
    # do not return together (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    longest = min(MAX_BACKOFF, float(remaining), BASE_BACKOFF * 2.0 ** min(attempt, _MAX_EXPONENT))
    return longest / 2 + rng.random() * (longest / 2)


def retry_delay(attempt: int, remaining: int, retry_after: float | None, rng: random.Random) -> float | None:
    """The delay before attempt number `attempt` (the first retry is 1); None when the deadline leaves no time for it.

    `retry_after` comes from the server. If it is longer than the backoff, it replaces it: at most half of the remaining
    time, so that one wrong estimate cannot use up the deadline, plus up to a quarter of jitter.
    """
    if remaining <= 0:
        return None
    delay = exponential_backoff(attempt, remaining, rng)
    if retry_after is not None and retry_after > delay:
        delay = max(delay, min(retry_after, remaining / 2) * (1 + rng.random() / 4))
    return delay


# What Envoy answers if the upstream ends the connection, and if no upstream got the request (`Router` and
# `Utility::resetReasonToString`, https://github.com/envoyproxy/envoy/blob/main/source/common/http/utility.cc).
_ENVOY_RESET: Final = (
    rb"upstream connect error or disconnect/reset before headers\. [a-z ]{0,40}reset reason: "
)
_ENVOY_DISCONNECTED: Final = re.compile(
    _ENVOY_RESET + rb"(?:connection termination|remote reset|http1 premature)"
)
_ENVOY_UNSENT: Final = re.compile(
    rb"no healthy upstream|"
    + _ENVOY_RESET
    + rb"(?:(?:local |remote )?connection failure|connection timeout|overflow)"
)


@dataclass(frozen=True, slots=True)
class Finish:
    """Store this result: the request is done. `Queue.finish`. `dead_letter`: why the request was given up."""

    result: Result
    dead_letter: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the request again after `delay_ms`. `Queue.retry`."""

    delay_ms: int
    reason: str
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """After so many failed attempts a request is given up: `failures` of any kind, `disconnects` among them."""

    failures: int = 20
    disconnects: int = 5


DEFAULT_LIMITS: Final = AttemptLimits()


@dataclass(frozen=True, slots=True)
class Release:
    """Put the claim back at its place in the queue; no attempt is counted. `Queue.release`."""


Verdict = Finish | Retry | Release


def was_shed(answer: GatewayAnswer | NoAnswer) -> bool:
    """Whether the target refused the request as one too many: no worker got it."""
    # A bare 503 can come from any proxy on the way; the picker names a reason when it sheds a request with 503.
    return isinstance(answer, GatewayAnswer) and (
        answer.status == 429 or (answer.status == 503 and bool(answer.dropped_reason))
    )


def outcome_of(answer: GatewayAnswer | NoAnswer) -> Outcome:
    """The target's load as a gate learns it from the answer."""
    if isinstance(answer, NoAnswer):
        return Outcome.OTHER
    # 429 without the picker's reason is a limit of this caller (RFC 6585, 4) and says nothing about the pool: were the
    # target closed for it, one tenant over its limit would stop all others.
    if was_shed(answer) and answer.dropped_reason:
        return Outcome.OVERLOADED
    return Outcome.ACCEPTED if answer.status < 400 else Outcome.OTHER


def fault_of(answer: GatewayAnswer | NoAnswer) -> Fault | None:
    """How an attempt that is not final failed; None: no worker got the request, so the request is not to blame."""
    if isinstance(answer, NoAnswer):
        if not answer.reached:
            return None
        return Fault.DISCONNECTED if answer.disconnected else Fault.FAILED
    if was_shed(answer) or (answer.status == 503 and _ENVOY_UNSENT.match(answer.body)):
        return None
    disconnected = answer.status == 503 and _ENVOY_DISCONNECTED.match(answer.body)
    return Fault.DISCONNECTED if disconnected else Fault.FAILED


def judge(
    claim: Claim,
    answer: GatewayAnswer | NoAnswer,
    now_ms: int,
    rng: random.Random,
    limits: AttemptLimits = DEFAULT_LIMITS,
) -> Verdict:
    """`now_ms` is the broker's clock.

    Final: an answer below 500 except 429, a failure that every attempt would repeat, and any answer when the limits or
    the deadline leave no further attempt.

    RFC 9110, 9.2.2 allows a client to repeat a POST only if it knows that the request is idempotent. Inference is: an
    answer that nobody read changed nothing. All attempts carry the same idempotency-key for targets that keep answers.
    """
    remaining_ms = claim.request.deadline_ms - now_ms
    if isinstance(answer, NoAnswer):
        if answer.final:
            return failure(
                claim, ErrorCode.INFERENCE_ERROR, answer.reason, now_ms, attempts=claim.attempt + 1
            )
        reason, retry_after = answer.reason, None
    # 5xx: the server failed (RFC 9110, 15.6). 429: too many requests now (RFC 6585, 4). Any other 4xx blames the request
    # itself (RFC 9110, 15.5): a retry would get the same answer.
    elif answer.status < 500 and answer.status != 429:
        return Finish(_result(claim, answer, now_ms))
    else:
        reason, retry_after = _status_text(answer), answer.retry_after
    fault = fault_of(answer)
    if given_up := _given_up(claim, fault, limits):
        given_up = f"{given_up}; the last one: {reason}"
        return Finish(_last(claim, answer, now_ms, ErrorCode.INFERENCE_ERROR, given_up), given_up)
    delay = retry_delay(claim.attempt + 1, remaining_ms // 1000, retry_after, rng)
    if delay is not None:
        return Retry(int(delay * 1000), reason, fault)
    late = f"the deadline leaves no time for another attempt; the last one: {reason}"
    return Finish(_last(claim, answer, now_ms, ErrorCode.DEADLINE_EXCEEDED, late))


def _given_up(claim: Claim, fault: Fault | None, limits: AttemptLimits) -> str:
    """Why this failed attempt is the last one; empty if it need not be."""
    if fault is None:
        return ""
    failures, disconnects = claim.failures + 1, claim.disconnects + 1
    if fault is Fault.DISCONNECTED and disconnects >= limits.disconnects:
        return (
            f"given up after {disconnects} attempts whose connection ended before an answer (max_disconnects)"
        )
    if failures >= limits.failures:
        return f"given up after {failures} failed attempts (max_attempts)"
    return ""


def _last(
    claim: Claim, answer: GatewayAnswer | NoAnswer, now_ms: int, code: ErrorCode, message: str
) -> Result:
    if isinstance(answer, GatewayAnswer):
        return _result(claim, answer, now_ms, code, message)
    return failure(claim, code, message, now_ms, attempts=claim.attempt + 1).result


def failure(claim: Claim, code: ErrorCode, message: str, now_ms: int, *, attempts: int) -> Finish:
    """A result without an HTTP response. Its status is 0 and its payload is `message` as an OpenAI error object."""
    request = claim.request
    return Finish(
        Result(request.id, request.token, 0, error_payload(message), code, message, attempts, now_ms)
    )


def _result(
    claim: Claim, answer: GatewayAnswer, now_ms: int, code: ErrorCode | None = None, message: str = ""
) -> Result:
    request = claim.request
    attempts = claim.attempt + 1
    return Result(request.id, request.token, answer.status, answer.body, code, message, attempts, now_ms)


def _status_text(answer: GatewayAnswer) -> str:
    detail = f", {answer.dropped_reason}" if answer.dropped_reason else ""
    return f"HTTP {answer.status}{detail}"
