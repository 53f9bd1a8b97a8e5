"""What travels: a request, the claim on it, its one terminal result, and what could not be read at all."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAX_PAYLOAD = 10 * 1024 * 1024
"""Bytes of one payload."""


class ErrorCode(StrEnum):
    """Why a request has no answer of a worker; the Go processor's words, so that its consumers understand them."""

    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    GATE_DROPPED = "GATE_DROPPED"
    GATE_ERROR = "GATE_ERROR"
    INFERENCE_ERROR = "INFERENCE_ERROR"
    INVALID_REQUEST = "INVALID_REQUEST"
    PAYLOAD_UNAVAILABLE = "PAYLOAD_UNAVAILABLE"


def new_token() -> str:
    """32 hexadecimal characters that tell two submissions of one id apart."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its producer hands it in; `deadline_ms` and `created_ms` are Unix milliseconds.

    `path`: below the target's base URL; empty: the queue's own. `tier`: 0 goes first where a queue has strict tiers.
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
    """The head of a queue, seen but not claimed; `size` in bytes of payload, `units` in the gate's unit of capacity."""

    id: str
    token: str
    tenant: str
    deadline_ms: int
    size: int
    units: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to answer a request until the lease ends; `fence` tells it from every other claim on it.

    `delivery`: how often the request was claimed, this claim included. `attempt`: how often it was sent before, from 0.
    """

    request: Request
    fence: str
    delivery: int
    attempt: int
    leased_until_ms: int


@dataclass(frozen=True, slots=True)
class Result:
    """The one terminal answer. `status_code` 0: no HTTP response came, then `error_code` says why."""

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
    """A message that is no request, or one that killed whoever took it; `raw` is cut at 64 KiB."""

    reason: str
    raw: bytes
    id: str | None
    at_ms: int
