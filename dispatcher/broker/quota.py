"""What one tenant may use at most, over all replicas: places at once, or starts in a sliding window.

Implemented where the broker is: `dispatcher.broker.memory.quota` and `dispatcher.broker.redis.quota`; one contract suite over both.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dispatcher.broker.ledger import Refusal


class QuotaMode(StrEnum):
    CONCURRENCY = "concurrency"
    """Places held at once. Each is leased by its holder: one whose holder was killed comes back after a lease."""
    RATE = "rate-limit"
    """Starts within any `window_ms`."""


@dataclass(frozen=True, slots=True)
class Quota:
    """`limit` for each key; times in milliseconds."""

    limit: int
    mode: QuotaMode = QuotaMode.RATE
    window_ms: int = 60_000
    lease_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Grant:
    """A place under `key`, told from every other by `id`: a request's id may occur twice."""

    key: str
    id: str
    quota: Quota


class Quotas(Protocol):
    """Raises `dispatcher.broker.queue.QueueError` when the broker is away: callers then send nothing."""

    async def now_ms(self) -> int:
        """The broker's clock."""

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        """A place, or since when asking again may help."""

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        """The holders of these places live; a place under a rate needs none."""

    async def release(self, grant: Grant, *, used: bool) -> None:
        """The dispatch is over. A start that was `used` stays counted until its window has passed."""

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        """Until a place was released since the refusal that said `seen`, at most `timeout` seconds."""
