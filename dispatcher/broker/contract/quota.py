"""The interface of tenant quotas over all replicas: requests at once, or starts within a sliding window.

`dispatcher.broker.memory.quota` and `dispatcher.broker.redis.quota` implement it; one contract suite runs over both.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dispatcher.broker.contract.ledger import Refusal


class QuotaMode(StrEnum):
    CONCURRENCY = "concurrency"
    """Requests at once. Each grant is a lease: if its holder was killed, it is free again after `lease_ms`."""
    RATE = "rate-limit"
    """Starts within any `window_ms`, a sliding window: at no moment are there more than `limit` in it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `limit` grants for each key; times in milliseconds."""

    limit: int
    mode: QuotaMode = QuotaMode.RATE
    window_ms: int = 60_000
    lease_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Grant:
    """One grant under `key`. `id` is random, since two requests may have the same id."""

    key: str
    id: str
    quota: Quota


class Quotas(Protocol):
    """Methods raise `dispatcher.broker.contract.queue.QueueError` if the broker is away: callers then send nothing."""

    async def now_ms(self) -> int:
        """The broker's clock, Unix milliseconds."""

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        """A grant, or a refusal with the time from which asking again may help."""

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        """Extend these grants. A grant of a rate needs no heartbeat: it ends with its window."""

    async def release(self, grant: Grant, *, used: bool) -> None:
        """End the dispatch. Under a rate, a start that was `used` stays counted until its window has passed."""

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        """Return when a grant was released since the refusal with this `seen`, at most after `timeout` seconds."""
