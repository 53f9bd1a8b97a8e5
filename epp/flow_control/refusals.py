"""The answers to clients whose requests flow control refuses.

Statuses and reasons: llm-d-router, pkg/epp/requestcontrol/admission.go. 429: there is capacity, and it is in use; 503: there
is none.
"""

from typing import Final

from epp.request.rejection import RETRY_AFTER, Rejection
from epp.scheduling.candidates import NO_ENDPOINTS
from epp.scheduling.saturation import SATURATED

TTL_EXPIRED: Final = "rejected-ttl-expired"
EVICTED: Final = "evicted-queue-pressure"
TAKEN_BACK: Final = "evicted-priority"


def queue_full(priority: int, *, empty: bool) -> Rejection:
    """`empty`: the pool has no endpoint."""
    if empty:
        message = f"no endpoint is ready, and the queue of requests of priority {priority} is full"
        return Rejection(503, "no_endpoints", message, reason=NO_ENDPOINTS, retry_after=RETRY_AFTER)
    message = f"the endpoints are saturated, and the queue of requests of priority {priority} is full"
    return Rejection(429, "saturated", message, reason=SATURATED, retry_after=RETRY_AFTER)


def expired(seconds: float, *, empty: bool) -> Rejection:
    """`seconds`: the time that it had."""
    if empty:
        message = f"no endpoint became ready within {seconds:g} s"
        return Rejection(503, "no_endpoints", message, reason=NO_ENDPOINTS, retry_after=RETRY_AFTER)
    message = f"the endpoints are saturated, and the request waited for {seconds:g} s"
    return Rejection(429, "ttl_expired", message, reason=TTL_EXPIRED, retry_after=RETRY_AFTER)


def evicted(priority: int) -> Rejection:
    """A request of that priority waited, and one of a higher priority took its place in the queue."""
    message = f"the queue is full, and the request of priority {priority} had to make room for one of a higher priority"
    return Rejection(429, "saturated", message, reason=EVICTED, retry_after=RETRY_AFTER)


def gave_way(priority: int) -> Rejection:
    """A request of that priority waited, and one of a flow with fewer requests took its place."""
    message = f"the queue of priority {priority} is full, and no other client has as many requests in it"
    return Rejection(429, "saturated", message, reason=EVICTED, retry_after=RETRY_AFTER)


def taken_back(priority: int) -> Rejection:
    """A worker had a request of that priority, and one of a higher priority needs its place."""
    message = f"the endpoints are saturated, and the request of priority {priority} had to make room for one of a higher priority"
    return Rejection(429, "saturated", message, reason=TAKEN_BACK, retry_after=RETRY_AFTER)
