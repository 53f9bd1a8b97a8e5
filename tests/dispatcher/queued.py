"""Requests to queue, and what queue tests ask again and again."""

from collections.abc import Mapping
from typing import Any

from dispatcher.broker.contract.message import Claim, Request, Result
from dispatcher.broker.contract.queue import Broker, Queue
from tests.eventually import asked_until, eventually

HOUR = 3_600_000


async def submitted(broker: Broker, queue: Queue, id: str, *, within_ms: int = HOUR, **more: Any) -> Request:
    """A request in the queue, its deadline `within_ms` from now where it is not named."""
    key = more.pop("idempotency_key", None)
    defaults = {"payload": b"{}", "deadline_ms": await broker.now_ms() + within_ms}
    return await queue.submit(Request(id, **{**defaults, **more}), idempotency_key=key)


async def claimed(queue: Queue, **more: Any) -> Claim:
    """The one claim that there is."""
    more.setdefault("owner", "tester")
    [claim] = await queue.claim(1, **more)
    return claim


async def claimed_again(queue: Queue) -> Claim:
    """The one claim that there is once the lease of the one before has ended.

    A broker that heard of nobody for seconds leaves a claim to its owner for a while longer.
    """
    claims: list[Claim] = []

    async def is_given() -> bool:
        claims.extend(await queue.claim(1, owner="tester"))
        return bool(claims)

    await eventually(is_given)
    [claim] = claims
    return claim


async def lapsed(queue: Queue) -> None:
    """Until a sweep gave back a claim whose lease had ended, which may be a while later, as above."""

    async def is_given_back() -> bool:
        await queue.sweep()
        return (await queue.totals()).redelivered > 0

    await eventually(is_given_back)


def answer(claim: Claim, payload: bytes = b"ok", status: int = 200) -> Result:
    return Result(claim.request.id, claim.request.token, status, payload, attempts=claim.attempt + 1)


async def until_ms(broker: Broker, at_ms: int) -> None:
    """Until the broker's clock shows that time."""
    await asked_until(broker.now_ms, lambda found: found >= at_ms)


async def counts(queue: Queue) -> Mapping[str, int]:
    """The totals that are not 0; conservation is checked on the way."""
    totals = await queue.totals()
    ended = totals.succeeded + totals.failed + totals.expired + totals.cancelled + totals.dropped
    assert totals.submitted == ended + totals.pending
    named = {name: getattr(totals, name) for name in totals.__slots__}
    return {name: count for name, count in named.items() if count}
