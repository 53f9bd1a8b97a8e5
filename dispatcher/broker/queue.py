"""A queue of requests: earliest deadline first within a tenant, weighted fair across tenants, leases, one result each.

Held by one contract suite over every implementation (`dispatcher.broker.memory`, `dispatcher.broker.redis`). All times are the
broker's own, in milliseconds: no client clock decides anything.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dispatcher.broker.ledger import Ledger
from dispatcher.broker.message import Claim, DeadLetter, DispatchCandidate, ErrorCode, Request, Result
from dispatcher.broker.quota import Quotas


class QueueError(Exception):
    """The broker is away or refuses; nothing was changed unless the text says otherwise."""


class ConflictError(QueueError):
    """The idempotency key was used for another request."""


class State(StrEnum):
    """Where a request is."""

    PENDING = "pending"
    DELAYED = "delayed"
    CLAIMED = "claimed"
    DONE = "done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What holds for one queue, the same in every process that opens it; times in milliseconds."""

    lease_ms: int = 15_000
    max_deliveries: int = 10
    """Claims on one request that end by a lapsed lease before it is taken for the cause and becomes a dead letter."""
    result_ttl_ms: int = 7 * 24 * 3600 * 1000
    max_payload: int = 10 * 1024 * 1024
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant → share; 1.0 where not named."""
    strict_tiers: bool = False
    """Lower tiers first, whatever the fairness between tenants; else `Request.tier` means nothing."""
    result_list: str = ""
    """A Redis list that gets the results, as the Go processor writes them, in place of leases; empty: leases.

    Nothing of them is kept here then: `state` and `wait_result` know no result of such a queue.
    """


@dataclass(frozen=True, slots=True)
class Totals:
    """Counted by the broker: submitted = succeeded + failed + expired + cancelled + dropped + pending, always."""

    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    dropped: int = 0
    pending: int = 0
    """Not terminal: waiting, delayed or claimed."""
    claimed: int = 0
    delayed: int = 0
    retries: int = 0
    redelivered: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class LeasedResult:
    """A result handed to one consumer until its lease ends; `fence` goes back with `ack_result`."""

    result: Result
    fence: str


class Queue(Protocol):
    """One queue, opened; every method raises QueueError when the broker is away."""

    @property
    def name(self) -> str:
        """Unique in its broker."""

    async def submit(self, request: Request, *, idempotency_key: str | None = None) -> Request:
        """Accept it; the accepted request, which is the earlier one where key and body were seen before.

        A key is its tenant's own. The same id and token is the same submission: repeat it when an answer was lost.
        Raises ConflictError (same key, other body) and ValueError (no id, deadline past, payload too large).
        """

    async def peek(self, limit: int, *, skip_tenants: Collection[str] = ()) -> Sequence[DispatchCandidate]:
        """What `claim` would give next, in its order, without bodies; nothing is changed."""

    async def claim(self, limit: int, *, owner: str, skip_tenants: Collection[str] = ()) -> Sequence[Claim]:
        """Take up to `limit`; expired and over-delivered ones are answered on the way and not given.

        Each counts as an attempt from now on: its owner may send it at any time, and be killed right after.
        """

    async def extend(self, claims: Sequence[Claim]) -> Sequence[bool]:
        """Heartbeat: a full lease from now on; False where the claim is no longer ours, or was cancelled."""

    async def finish(self, claim: Claim, result: Result) -> bool:
        """Publish the result and drop the claim, atomically; False and nothing done where it is not ours."""

    async def retry(self, claim: Claim, delay_ms: int) -> bool:
        """Give it back, visible after `delay_ms` and never before; its place by deadline is kept."""

    async def release(self, claims: Sequence[Claim], *, sent: bool = False) -> int:
        """Hand back at once, as if never claimed; how many were ours. `sent`: the attempt was made, and counts."""

    async def cancel(self, id: str, token: str | None = None) -> State:
        """Answer CANCELLED in place of it; where it is claimed its owner learns by `extend`. The state before."""

    async def sweep(self) -> int:
        """Give back lapsed claims, let due retries in, answer expired ones; how many were touched. Cheap when idle."""

    async def reject(self, raw: bytes, reason: str, *, id: str | None = None, code: ErrorCode) -> None:
        """A message that cannot be a request: a dead letter, and where its id is known one terminal result."""

    async def wait(self, timeout: float) -> bool:
        """Until something may be claimable, at most `timeout` seconds; False: nothing. A wake-up, not a poll.

        What happened since the last `peek` or `claim` of this opened queue counts: one pump waits on it, and misses
        nothing.
        """

    async def cancelled(self, timeout: float) -> Collection[str]:
        """Fences of claims of this opened queue that were cancelled since the last call, as soon as there are any.

        For one reader; empty after `timeout` seconds. What it misses in an outage `extend` tells.
        """

    async def state(self, id: str, token: str | None = None) -> tuple[State, Result | None]:
        """Where it is, and its result while that is kept."""

    async def wait_result(self, id: str, token: str | None = None, *, timeout: float) -> Result | None:
        """The result of one request as soon as it is there; None after `timeout` seconds. Takes nothing away."""

    async def lease_results(self, limit: int, *, lease_ms: int = 300_000) -> Sequence[LeasedResult]:
        """Results nobody else holds, oldest first; they come back unless `ack_result` follows."""

    async def ack_results(self, leased: Sequence[LeasedResult]) -> int:
        """They are dealt with; how many leases were still ours."""

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        """The newest, nothing is taken away."""

    async def totals(self) -> Totals:
        """One consistent reading."""


class Broker(Protocol):
    """Opens queues and ledgers of one broker; an async context manager, entered: it answered."""

    async def now_ms(self) -> int:
        """The broker's clock, Unix milliseconds."""

    async def ping(self) -> bool:
        """Whether it answers now."""

    def queue(self, name: str, rules: QueueRules) -> AbstractAsyncContextManager[Queue]:
        """Open a queue; nothing is made until something is submitted."""

    def ledger(self, target: str) -> AbstractAsyncContextManager[Ledger]:
        """Open the ledger of a target, the same for all queues and replicas that name it."""

    def quotas(self) -> AbstractAsyncContextManager[Quotas]:
        """Open the tenants' quotas, the same for all replicas."""
