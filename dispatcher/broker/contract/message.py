"""The messages of a queue: a request, a claim on it, its single terminal result, and a dead letter."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAX_PAYLOAD = 10 * 1024 * 1024
"""Bytes of one payload."""


class ErrorCode(StrEnum):
    """Why a request has no answer of a worker. The values are those of the Go processor: its consumers read them."""

    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    GATE_DROPPED = "GATE_DROPPED"
    GATE_ERROR = "GATE_ERROR"
    INFERENCE_ERROR = "INFERENCE_ERROR"
    INVALID_REQUEST = "INVALID_REQUEST"
    PAYLOAD_UNAVAILABLE = "PAYLOAD_UNAVAILABLE"


class Fault(StrEnum):
    """How an attempt failed that reached the target; a failed attempt counts, a refused one does not."""

    FAILED = "failed"
    DISCONNECTED = "disconnected"
    """The connection ended before the answer did: the request may have killed its worker."""


def new_token() -> str:
    """A submission's token, 32 random hexadecimal characters: two submissions may have the same id."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its producer submits it; `deadline_ms` and `created_ms` are Unix milliseconds.

    `path`: below the target's base URL; empty: the queue's own. `tier`: in a queue with strict tiers, 0 goes first.
    """

    id: str
    payload: bytes
    deadline_ms: int
    tenant: str = "default"
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    objective: str = ""
    tier: int = 0
    created_ms: int = 0
    token: str = field(default_factory=new_token)


@dataclass(frozen=True, slots=True)
class DispatchCandidate:
    """A request at the head of a queue, not claimed. `size`: bytes of its payload. `units`: in the gate's unit."""

    id: str
    token: str
    tenant: str
    deadline_ms: int
    size: int
    units: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to answer a request until the lease ends.

    `fence` is unique to this claim, a fencing token: a holder that was frozen past the end of its lease cannot publish a
    result over that of the next holder. `delivery`: claims so far, this one included. `attempt`: sends before this claim.
    `failures`: those that failed (`Queue.retry` with a fault); `disconnects`: those of them with Fault.DISCONNECTED.
    """

    request: Request
    fence: str
    delivery: int
    attempt: int
    leased_until_ms: int
    failures: int = 0
    disconnects: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The single terminal answer. `status_code` 0: there was no HTTP response, and `error_code` says why."""

    id: str
    token: str
    status_code: int
    payload: bytes
    error_code: ErrorCode | None = None
    error_message: str = ""
    attempts: int = 0
    finished_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is no request, or a request that was given up, with its payload; `raw` is cut at 64 KiB."""

    reason: str
    raw: bytes
    id: str | None
    at_ms: int
