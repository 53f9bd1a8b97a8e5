"""What a queue takes in, what counts as the same request, and how a terminal result is counted (pure)."""

import hashlib
import json
import math
import re
from typing import Final

from dispatcher.broker.message import ErrorCode, Request, Result
from dispatcher.broker.queue import QueueRules

LONGEST_NAME: Final = 200
LONGEST_ID: Final = 512
LONGEST_TENANT: Final = 256
LONGEST_KEY: Final = 1024
"""Bytes of a token, and of an idempotency key."""
LONGEST_KEPT_MS: Final = 10 * 365 * 24 * 3600 * 1000
"""A result is kept no longer; a broker counts no such times."""
LONGEST_LEASE_MS: Final = 15_000
"""Of a claim, in a configuration. One that has longer to go was made before the broker's clock went back."""
LEAST_WEIGHT: Final = 1e-6
"""Of a tenant; each turn is charged its inverse, which must stay a number that can be added up."""
LATEST_MS: Final = 2**53
"""The first time that a broker cannot count exactly."""
RAW_KEPT: Final = 64 * 1024
"""Bytes of a message that is no request which a dead letter keeps."""
DEAD_LETTERS_KEPT: Final = 1_000
"""The newest dead letters of a queue; older ones are only counted."""
FINISH_REMEMBERED_MS: Final = 120_000
"""How long a finished claim is known after its result was taken away: `finish` may be repeated that long."""

EXPIRED: Final = "the deadline passed before an answer came"
CANCELLED: Final = "cancelled"
POISON: Final = "claimed too often: whoever claimed it stopped answering"
REQUEST_GONE: Final = "the broker lost the request: is its maxmemory-policy noeviction?"
BODY_GONE: Final = "the broker lost the request's body"

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def checked_name(name: str) -> str:
    """A queue's name, which becomes part of the broker's keys; raises ValueError."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a queue: expected at most {LONGEST_NAME} letters, digits, '.', '_', '/' or '-', "
            "the first one a letter or digit"
        )
    return name


def checked_rules(name: str, rules: QueueRules) -> QueueRules:
    """Rules that a broker can keep; raises ValueError."""
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
                f"the weight of tenant {tenant!r} in queue {name!r} is {weight}, expected more than 0, and {LEAST_WEIGHT:g} at least"
            )
    if rules.result_list.startswith("adsum:"):
        raise ValueError(
            f"results of queue {name!r} cannot go to {rules.result_list!r}, which is a key of ours"
        )
    return rules


def is_valid_tenant(text: str) -> bool:
    """Whether it can stand in keys and headers."""
    return 0 < len(text.encode()) <= LONGEST_TENANT and not _CONTROL.search(text)


def check_request(request: Request, rules: QueueRules) -> None:
    """Whether a queue can hold it, its deadline aside; raises ValueError with what to change."""
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
            f"the deadline of request {request.id!r} is no time in milliseconds: {request.deadline_ms}"
        )
    if len(request.payload) > rules.max_payload:
        raise ValueError(
            f"the payload of request {request.id!r} has {len(request.payload)} bytes, "
            f"the queue takes {rules.max_payload}"
        )


def check_key(key: str) -> None:
    """Whether it can be an idempotency key; raises ValueError with what to change."""
    if len(key.encode()) > LONGEST_KEY:
        raise ValueError(f"an idempotency key has {LONGEST_KEY} bytes at most")


def deadline_error(request: Request, now_ms: int) -> ValueError:
    """The error for a deadline that lies behind."""
    late = now_ms - request.deadline_ms
    return ValueError(
        f"the deadline of request {request.id!r} passed {late} ms ago; deadline_ms is Unix time in milliseconds"
    )


def digest(request: Request) -> str:
    """What an idempotency key stands for: tenant, path and payload. Id, deadline and headers may differ."""
    routed = json.dumps([request.tenant, request.path]).encode()
    return hashlib.sha256(b"%d:%b%b" % (len(routed), routed, request.payload)).hexdigest()


def counted_as(result: Result) -> str:
    """The counter of `dispatcher.broker.queue.Totals` that a terminal result belongs to."""
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
    """What a result without an answer carries as its payload."""
    return json.dumps({"error": message}, separators=(",", ":")).encode()
