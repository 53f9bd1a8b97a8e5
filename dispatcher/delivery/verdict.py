"""Decides what an answer of a target means (pure): the result of the request, or a retry after a delay.

The rules are those of the worker of llm-d's Go processor, which does not retry connection errors and timeouts; we do.
"""

import random
from dataclasses import dataclass

from dispatcher.broker.message import Claim, ErrorCode, Result
from dispatcher.broker.validation import error_payload
from dispatcher.delivery.backoff import retry_delay
from dispatcher.delivery.gateway import GatewayAnswer, NoAnswer
from dispatcher.gates.gate import Outcome


@dataclass(frozen=True, slots=True)
class Finish:
    """Store this result: the request is done. `Queue.finish`."""

    result: Result


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the request again after `delay_ms`. `Queue.retry`."""

    delay_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Put the claim back at its place in the queue; no attempt is counted. `Queue.release`."""


Verdict = Finish | Retry | Release


def outcome_of(answer: GatewayAnswer | NoAnswer) -> Outcome:
    """What the answer tells a gate about the target's load."""
    if isinstance(answer, NoAnswer):
        return Outcome.OTHER
    # 429 (RFC 6585, 4) is what the picker answers when the pool is full. A bare 503 can come from any proxy on the way
    # and says nothing about load; the picker names a reason when it sheds a request with 503.
    if answer.status == 429 or (answer.status == 503 and answer.dropped_reason):
        return Outcome.OVERLOADED
    return Outcome.ACCEPTED if answer.status < 400 else Outcome.OTHER


def judge(claim: Claim, answer: GatewayAnswer | NoAnswer, now_ms: int, rng: random.Random) -> Verdict:
    """`now_ms` is the broker's clock.

    Final: an answer below 500 except 429, a failure that every attempt would repeat, and any answer when the deadline
    leaves no time for another attempt.

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
    delay = retry_delay(claim.attempt + 1, remaining_ms // 1000, retry_after, rng)
    if delay is not None:
        return Retry(int(delay * 1000), reason)
    late = f"the deadline leaves no time for another attempt; the last one: {reason}"
    if isinstance(answer, GatewayAnswer):
        return Finish(_result(claim, answer, now_ms, ErrorCode.DEADLINE_EXCEEDED, late))
    return failure(claim, ErrorCode.DEADLINE_EXCEEDED, late, now_ms, attempts=claim.attempt + 1)


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
