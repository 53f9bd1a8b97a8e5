"""The rules for what a queue accepts, which requests an idempotency key treats as equal, how a result is counted (pure)."""

import hashlib
import json
import math
import re
from typing import Final

from dispatcher.broker.contract.message import ErrorCode, Request, Result
from dispatcher.broker.contract.queue import QueueFullError, QueueLimits, QueueRules

LONGEST_NAME: Final = 200
LONGEST_ID: Final = 512
LONGEST_TENANT: Final = 256
LONGEST_KEY: Final = 1024
"""Bytes of a token, and of an idempotency key."""
LONGEST_KEPT_MS: Final = 10 * 365 * 24 * 3600 * 1000
"""The longest that a result may be kept: beyond that, times leave the range that a broker counts exactly."""
LONGEST_LEASE_MS: Final = 15_000
"""The longest lease that a configuration may set. A claim that has longer to go was made before the clock went back."""
LEAST_WEIGHT: Final = 1e-6
"""The least weight of a tenant. A request costs 1 / weight of virtual time: larger costs would lose the smaller ones
when they are added up as floats."""
LATEST_MS: Final = 2**53
"""Times from here on are not exact: Lua numbers and sorted set scores are doubles, exact up to 2^53
(https://redis.io/docs/latest/commands/zadd/)."""
RAW_KEPT: Final = 64 * 1024
"""Bytes of the message that a dead letter keeps."""
DEAD_LETTERS_KEPT: Final = 1_000
"""The newest dead letters of a queue; older ones are only counted."""
FINISH_REMEMBERED_MS: Final = 120_000
"""How long a finished claim is remembered after its result was acknowledged: `finish` may be repeated that long."""

EXPIRED: Final = "the deadline passed before an answer came"
CANCELLED: Final = "cancelled"
POISON: Final = "claimed too often: every dispatcher that claimed it stopped answering"
REQUEST_GONE: Final = "the broker lost the request: check that its maxmemory-policy is noeviction"
BODY_GONE: Final = "the broker lost the request's body"
KEY_CONFLICT: Final = (
    "the idempotency key was used for another request: same tenant, path and payload expected"
)

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def checked_name(name: str) -> str:
    """The name, if a queue may have it; else raises ValueError. It becomes the hash tag of the queue's Redis keys."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a queue: expected at most {LONGEST_NAME} letters, digits, '.', '_', '/' or '-', "
            "the first one a letter or digit"
        )
    return name


def checked_rules(name: str, rules: QueueRules) -> QueueRules:
    """The rules, if a broker can keep them; else raises ValueError."""
    for word in ("lease_ms", "max_deliveries", "result_ttl_ms", "max_payload"):
        if getattr(rules, word) < 1:
            raise ValueError(f"{word} of queue {name!r} is {getattr(rules, word)}, expected 1 or more")
    if rules.result_ttl_ms > LONGEST_KEPT_MS:
        raise ValueError(
            f"result_ttl_ms of queue {name!r} is {rules.result_ttl_ms}, expected ten years at most"
        )
    for tenant, weight in rules.weights.items():
        if not LEAST_WEIGHT <= weight < math.inf:
            raise ValueError(
                f"the weight of tenant {tenant!r} in queue {name!r} is {weight}, expected more than 0, at least {LEAST_WEIGHT:g}"
            )
    if rules.result_list.startswith("adsum:"):
        raise ValueError(
            f"results of queue {name!r} cannot go to {rules.result_list!r}: the prefix adsum: is reserved; name another list"
        )
    return rules


def is_valid_tenant(text: str) -> bool:
    """Whether it can be part of keys and headers: no control characters, 256 bytes at most."""
    return 0 < len(text.encode()) <= LONGEST_TENANT and not _CONTROL.search(text)


def check_request(request: Request, rules: QueueRules) -> None:
    """Raises ValueError with what to change if a queue cannot hold the request; the deadline is not compared with now."""
    if not request.id or len(request.id.encode()) > LONGEST_ID:
        raise ValueError(f"a request needs an id of 1 to {LONGEST_ID} bytes, not {request.id[:80]!r}")
    if not is_valid_tenant(request.tenant):
        raise ValueError(
            f"a request needs a tenant of 1 to {LONGEST_TENANT} bytes, none of them a control character, "
            f"not {request.tenant[:80]!r}"
        )
    if not 0 < len(request.token.encode()) <= LONGEST_KEY:
        raise ValueError(
            f"request {request.id!r} needs a token of 1 to {LONGEST_KEY} bytes; leave it out to get a new one"
        )
    if request.deadline_ms >= LATEST_MS:
        raise ValueError(
            f"the deadline of request {request.id!r} is no time in milliseconds: {request.deadline_ms}; "
            f"expected less than {LATEST_MS}"
        )
    if len(request.payload) > rules.max_payload:
        raise ValueError(
            f"the payload of request {request.id!r} has {len(request.payload)} bytes, "
            f"the queue takes {rules.max_payload}"
        )


def full_error(limit: str, tenant: str, limits: QueueLimits) -> QueueFullError:
    """`limit`: the field of `limits` that one more request would pass."""
    of = f" of tenant {tenant!r}" if limit.startswith("tenant_") else ""
    unit = "bytes of requests" if limit.endswith("bytes") else "requests"
    most = getattr(limits, limit)
    return QueueFullError(f"the queue is full: it takes {most} {unit}{of} (max_{limit}); submit again later")


def exceeded_limit(
    limits: QueueLimits, queue: tuple[int, int], tenant: tuple[int, int], size: int
) -> str | None:
    """The field of `limits` that one more request of `size` bytes would pass; what is held: requests, bytes."""
    held = {"requests": queue[0], "bytes": queue[1], "tenant_requests": tenant[0], "tenant_bytes": tenant[1]}
    for name, now in held.items():
        limit = getattr(limits, name)
        if limit and now + (size if name.endswith("bytes") else 1) > limit:
            return name
    return None


def check_key(key: str) -> None:
    """Raises ValueError if the idempotency key is too long."""
    if len(key.encode()) > LONGEST_KEY:
        raise ValueError(f"an idempotency key has {LONGEST_KEY} bytes at most")


def deadline_error(request: Request, now_ms: int) -> ValueError:
    """The error for a request whose deadline has passed."""
    late = now_ms - request.deadline_ms
    return ValueError(
        f"the deadline of request {request.id!r} passed {late} ms ago; deadline_ms is Unix time in milliseconds"
    )


def digest(request: Request) -> str:
    """A hash of what must be equal under one idempotency key: tenant, path, payload; not id, deadline and headers.

    A client that sends a request again usually makes a new id and a new deadline.
    """
    routed = json.dumps([request.tenant, request.path]).encode()
    return hashlib.sha256(b"%d:%b%b" % (len(routed), routed, request.payload)).hexdigest()


def counted_as(result: Result) -> str:
    """The counter of `dispatcher.broker.contract.queue.Totals` that a terminal result belongs to."""
    match result.error_code:
        case ErrorCode.DEADLINE_EXCEEDED:
            return "expired"
        case ErrorCode.CANCELLED:
            return "cancelled"
        case ErrorCode.GATE_DROPPED:
            return "dropped"
        case None if 200 <= result.status_code < 400:
            return "succeeded"
    return "failed"


def error_payload(message: str) -> bytes:
    """The payload of a result that has no answer of a worker."""
    return json.dumps({"error": message}, separators=(",", ":")).encode()
