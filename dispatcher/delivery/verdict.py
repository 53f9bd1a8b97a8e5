"""What follows from what a target answered (pure): the one result, or another attempt after a wait.

The rules of the Go processor's worker, with connect errors and timeouts retried too.
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
    """Publish this and nothing more."""

    result: Result


@dataclass(frozen=True, slots=True)
class Retry:
    """Send it once more, after `delay_ms`."""

    delay_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Hand it back as if it had never been claimed."""


Verdict = Finish | Retry | Release


def outcome_of(answer: GatewayAnswer | NoAnswer) -> Outcome:
    """What a gate may learn: taken, refused for want of room (429, or 503 with a reason), or nothing."""
    if isinstance(answer, NoAnswer):
        return Outcome.OTHER
    if answer.status == 429 or (answer.status == 503 and answer.dropped_reason):
        return Outcome.OVERLOADED
    return Outcome.ACCEPTED if answer.status < 400 else Outcome.OTHER


def judge(claim: Claim, answer: GatewayAnswer | NoAnswer, now_ms: int, rng: random.Random) -> Verdict:
    """`now_ms` is the broker's clock. An answer below 500 but for 429 is final, as is whatever has no time left."""
    remaining_ms = claim.request.deadline_ms - now_ms
    if isinstance(answer, NoAnswer):
        if answer.final:
            return failure(
                claim, ErrorCode.INFERENCE_ERROR, answer.reason, now_ms, attempts=claim.attempt + 1
            )
        reason, retry_after = answer.reason, None
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
    """A result without an HTTP response; its payload says what `message` does, as JSON."""
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
    why = f", {answer.dropped_reason}" if answer.dropped_reason else ""
    return f"HTTP {answer.status}{why}"
