"""The interfaces of a queue and a broker.

A queue orders requests by deadline within a tenant and fairly by weight across tenants. A claim is a lease; each request
gets exactly one result. One contract suite runs over both implementations (`dispatcher.broker.memory`,
`dispatcher.broker.redis`). All times are the broker's, in milliseconds: the clocks of clients differ, so none is used.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dispatcher.broker.contract.ledger import Ledger, Quotas
from dispatcher.broker.contract.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Fault,
    Request,
    Result,
)


class QueueError(Exception):
    """The broker is away or refuses. The text says whether the operation may have been done; it is safe to repeat."""


class ConflictError(QueueError):
    """The idempotency key was used for a different request."""


class QueueFullError(QueueError):
    """The queue holds as much as its limits allow. Nothing was done; it is worth a try later."""


class State(StrEnum):
    """The state of a request."""

    PENDING = "pending"
    DELAYED = "delayed"
    CLAIMED = "claimed"
    DONE = "done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may be without a result, and bytes of payload of that: in the queue, and of one tenant; 0: no limit."""

    requests: int = 0
    bytes: int = 0
    tenant_requests: int = 0
    tenant_bytes: int = 0


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The settings of one queue, the same in every process that opens it; times in milliseconds."""

    lease_ms: int = 15_000
    max_deliveries: int = 10
    """Lapsed claims after which a request is taken for the cause of the crashes and becomes a dead letter."""
    result_ttl_ms: int = 7 * 24 * 3600 * 1000
    max_payload: int = 10 * 1024 * 1024
    limits: QueueLimits = QueueLimits()
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant → relative share; 1.0 if not named."""
    strict_tiers: bool = False
    """Lower tiers go first, before any fairness between tenants; if False, `Request.tier` is ignored."""
    result_list: str = ""
    """A Redis list that results are pushed to, in the Go processor's form; empty: consumers lease results.

    Pushed results are not kept: `state` and `wait_result` find no result in such a queue.
    """


@dataclass(frozen=True, slots=True)
class Totals:
    """Counted by the broker. At every instant submitted = succeeded + failed + expired + cancelled + dropped + pending."""

    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    dropped: int = 0
    pending: int = 0
    """Requests without a result: waiting, delayed or claimed."""
    claimed: int = 0
    delayed: int = 0
    retries: int = 0
    redelivered: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class TenantBacklog:
    """The requests of one tenant that may be claimed, without delayed ones. `deadline_ms`: the earliest one's."""

    tenant: str
    waiting: int
    deadline_ms: int


def by_tenant(lines: Iterable[TenantBacklog]) -> list[TenantBacklog]:
    """The lines with those of one tenant in several tiers added up, at the place of its first one."""
    found: dict[str, TenantBacklog] = {}
    for line in lines:
        earlier = found.get(line.tenant)
        if earlier is not None:
            deadline_ms = min(earlier.deadline_ms, line.deadline_ms)
            line = TenantBacklog(line.tenant, earlier.waiting + line.waiting, deadline_ms)
        found[line.tenant] = line
    return list(found.values())


@dataclass(frozen=True, slots=True)
class LeasedResult:
    """A result that one consumer holds until its lease ends; `fence` identifies the lease in `ack_results`."""

    result: Result
    fence: str


class Queue(Protocol):
    """One opened queue. Every method raises QueueError if the broker is away."""

    @property
    def name(self) -> str:
        """Unique within the broker."""

    async def submit(self, request: Request, *, idempotency_key: str | None = None) -> Request:
        """Accept a request and return it; for a known key with the same body, return the earlier request.

        Keys are separate for each tenant. The same id and token is the same submission, so repeating it after a lost
        answer is safe. Raises ConflictError (same key, other body), QueueFullError, and ValueError (no id, deadline
        passed, payload too large).
        """

    async def peek(self, limit: int, *, skip_tenants: Collection[str] = ()) -> Sequence[DispatchCandidate]:
        """The requests that `claim` would return next, in its order, without bodies. Claims nothing."""

    async def claim(self, limit: int, *, owner: str, skip_tenants: Collection[str] = ()) -> Sequence[Claim]:
        """Claim up to `limit` requests. Expired and over-delivered requests get their result instead.

        Each claim counts as an attempt at once: its owner may send the request at any time and be killed right after.
        """

    async def extend(self, claims: Sequence[Claim]) -> Sequence[bool]:
        """Heartbeat: a full lease from now on. False for a claim that is no longer ours, or was cancelled."""

    async def finish(self, claim: Claim, result: Result, *, dead_letter: str = "") -> bool:
        """Publish the result and end the claim, atomically. False, and nothing changed, if the claim is not ours.

        Repeating it after a lost answer returns True again. `dead_letter`: the reason to record one with it.
        """

    async def retry(self, claim: Claim, delay_ms: int, *, fault: Fault | None = None) -> bool:
        """Return the request to the queue, visible after `delay_ms`; it keeps its place by deadline.

        `fault`: counted in `failures` and `disconnects` of later claims; None: the attempt failed by no fault.
        """

    async def release(self, claims: Sequence[Claim], *, sent: bool = False) -> int:
        """Return requests to the queue as if never claimed; how many were ours. `sent`: the attempt counts."""

    async def cancel(self, id: str, token: str | None = None) -> State:
        """Finish the request as CANCELLED; return its state before. The owner of a claim learns it from `extend`."""

    async def sweep(self) -> int:
        """Return lapsed claims and due retries to the queue, finish expired requests; how many. Cheap if idle."""

    async def reject(self, raw: bytes, reason: str, *, id: str | None = None, code: ErrorCode) -> None:
        """Record a message that is not a request as a dead letter and, if its id is known, publish its result."""

    async def wait(self, timeout: float) -> bool:
        """Return when something may be claimable, at most after `timeout` seconds; False: nothing happened.

        For one caller per opened queue. It includes everything since that queue's last `peek` or `claim`, so nothing
        that happens between them and the wait is missed.
        """

    async def cancelled(self, timeout: float) -> Collection[str]:
        """Fences of our claims that were cancelled since the last call, as soon as there are any; empty at `timeout`.

        For one caller per opened queue. Notifications are lost while the broker is away; `extend` finds those claims.
        """

    async def state(self, id: str, token: str | None = None) -> tuple[State, Result | None]:
        """The state of a request, and its result while that is kept."""

    async def wait_result(self, id: str, token: str | None = None, *, timeout: float) -> Result | None:
        """The result of one request as soon as it exists; None after `timeout` seconds. The result stays."""

    async def lease_results(self, limit: int, *, lease_ms: int = 300_000) -> Sequence[LeasedResult]:
        """Results that nobody else holds, oldest first. They are handed out again unless `ack_results` follows."""

    async def ack_results(self, leased: Sequence[LeasedResult]) -> int:
        """Remove results that were processed; how many leases were still ours."""

    async def forget(self, id: str, token: str) -> bool:
        """Remove a result that its client has, also from a consumer that leases it; False if there is none."""

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        """The newest dead letters; they stay."""

    async def totals(self) -> Totals:
        """All counters at one instant."""

    async def backlog(self, limit: int) -> Sequence[TenantBacklog]:
        """The tenants with requests that may be claimed, at most `limit`, in the order of their turns. Changes nothing."""


class Broker(Protocol):
    """Opens queues, ledgers and quotas. An async context manager: entering it has reached the broker."""

    async def now_ms(self) -> int:
        """The broker's clock, Unix milliseconds."""

    async def ping(self) -> bool:
        """Whether the broker answers now. Raises QueueError, which quotes no address, if it answers and takes nothing in."""

    def queue(self, name: str, rules: QueueRules) -> AbstractAsyncContextManager[Queue]:
        """Open a queue. Nothing is stored before the first submission."""

    def ledger(self, target: str) -> AbstractAsyncContextManager[Ledger]:
        """Open the ledger of a target; all queues and replicas that name the target share it."""

    def quotas(self) -> AbstractAsyncContextManager[Quotas]:
        """Open the tenants' quotas, shared by all replicas."""
