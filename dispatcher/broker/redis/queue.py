"""A queue in Redis: each operation is one atomic script, and operations of many tasks share a round trip.

Atomic (https://redis.io/docs/latest/develop/programmability/): a request is always in exactly one state, whenever a
dispatcher is killed. Every operation may be repeated, since an answer can be lost after the script has run.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis

from adsum.tasks import ResourceOwner
from dispatcher.broker.contract import validation
from dispatcher.broker.contract.ledger import Changes
from dispatcher.broker.contract.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Fault,
    Request,
    Result,
    new_token,
)
from dispatcher.broker.contract.queue import (
    ConflictError,
    LeasedResult,
    QueueError,
    QueueRules,
    State,
    TenantBacklog,
    Totals,
    by_tenant,
)
from dispatcher.broker.redis import records
from dispatcher.broker.redis.client.batching import Arguments
from dispatcher.broker.redis.client.connection import as_queue_errors
from dispatcher.broker.redis.client.subscriptions import MessageHandler, Subscriptions
from dispatcher.broker.redis.scripting import QueueScripts

INLINE_BYTES: Final = 64 * 1024
"""A body up to this size comes with its claim. A larger one is fetched by itself: an answer of many large bodies would
hold up all other commands on the connection, and Redis while it is built."""
SWEEP_BATCH: Final = 500
"""Requests in one pass of a sweep: Redis serves nobody else while a script runs."""
LEASED_BYTES: Final = 32 * 1024 * 1024
"""A lease of many results stops after this many bytes."""

log = logging.getLogger(__name__)


class RedisQueue(ResourceOwner):
    """Implements `dispatcher.broker.contract.queue.Queue`; an async context manager."""

    def __init__(self, client: Redis, address: str, name: str, rules: QueueRules) -> None:
        self._client = client
        self._address = address
        self.name = name
        self._rules = rules
        self._scripts = QueueScripts(client, address, name, rules)
        self._batches = {
            name: self._scripts.batched(name) for name in ("submit", "finish", "retry", "forget")
        }
        self._wake_ups, self._cancellations = self._scripts.key("stirred"), self._scripts.key("cancelled")
        handlers: dict[str, MessageHandler | None] = {
            self._wake_ups: None,
            self._cancellations: self._on_cancelled,
        }
        self._channels = Subscriptions(client, handlers)
        self._events = b"0"
        self._owners: set[bytes] = set()
        self._cancelled: set[str] = set()
        self._own_cancelled = Changes()

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._channels)
        for batch in self._batches.values():
            await self._stack.enter_async_context(batch)

    async def submit(self, request: Request, *, idempotency_key: str | None = None) -> Request:
        validation.check_request(request, self._rules)
        key, body = "", ""
        if idempotency_key is not None:
            validation.check_key(idempotency_key)
            key, body = idempotency_key, validation.digest(request)
        arguments = records.request_arguments(request, self._rules, key, body, self._rules.result_list)
        kind, *answer = await self._batches["submit"].call(arguments)
        if kind == b"conflict":
            raise ConflictError(validation.KEY_CONFLICT)
        if kind == b"past":
            raise validation.deadline_error(request, answer[0])
        if kind == b"full":
            raise validation.full_error(answer[0].decode(), request.tenant, self._rules.limits)
        if kind == b"new":
            return replace(request, created_ms=int(answer[0]))
        id, token, deadline, created = answer
        return replace(
            request,
            id=id.decode(),
            token=token.decode(),
            deadline_ms=int(deadline or request.deadline_ms),
            created_ms=int(created or request.created_ms),
        )

    async def peek(self, limit: int, *, skip_tenants: Collection[str] = ()) -> Sequence[DispatchCandidate]:
        events, rows = await self._scripts.call("peek", (limit, *skip_tenants))
        self._events = events
        return [records.candidate(row) for row in rows]

    async def claim(self, limit: int, *, owner: str, skip_tenants: Collection[str] = ()) -> Sequence[Claim]:
        self._owners.add(owner.encode())
        arguments: Arguments = (limit, owner, secrets.token_hex(8), INLINE_BYTES, *skip_tenants)
        events, until_ms, rows = await self._scripts.call("claim", arguments)
        self._events = events
        claims = [records.claim(row, until_ms, row[9]) for row in rows]
        if not any(int(row[10]) > INLINE_BYTES for row in rows):
            return claims
        return await self._fetch_bodies(claims, [int(row[10]) > INLINE_BYTES for row in rows])

    async def extend(self, claims: Sequence[Claim]) -> Sequence[bool]:
        if not claims:
            return []
        answers = await self._scripts.call("extend_claims", [claim.fence for claim in claims])
        return [answer == 1 for answer in answers]

    async def finish(self, claim: Claim, result: Result, *, dead_letter: str = "") -> bool:
        code = result.error_code or ""
        fields = (result.status_code, result.payload, code, result.error_message, result.attempts)
        return bool(
            await self._batches["finish"].call(
                (claim.fence, validation.counted_as(result), *fields, dead_letter)
            )
        )

    async def retry(self, claim: Claim, delay_ms: int, *, fault: Fault | None = None) -> bool:
        return bool(await self._batches["retry"].call((claim.fence, delay_ms, fault or "")))

    async def release(self, claims: Sequence[Claim], *, sent: bool = False) -> int:
        if not claims:
            return 0
        ours: int = await self._scripts.call("release", [int(sent), *(claim.fence for claim in claims)])
        return ours

    async def cancel(self, id: str, token: str | None = None) -> State:
        [state] = await self._scripts.call("cancel", (id, token or ""))
        return State(state.decode())

    async def sweep(self) -> int:
        touched = 0
        while True:
            more: int = await self._scripts.call("sweep", (SWEEP_BATCH,))
            touched += more
            if more < SWEEP_BATCH:
                return touched

    async def reject(self, raw: bytes, reason: str, *, id: str | None = None, code: ErrorCode) -> None:
        token = new_token()
        counter = validation.counted_as(Result(id or "", token, 0, b"", code))
        known = int(id is not None)
        arguments = (raw, reason, known, id or "", token, code, counter, self._rules.result_list)
        await self._scripts.call("reject", arguments)

    async def wait(self, timeout: float) -> bool:
        changes = self._channels.changes(self._wake_ups)
        seen = changes.count
        # From here on a change publishes a wake-up: `arm` marks that somebody waits, unless something changed already.
        events, soonest_ms = await self._scripts.call("arm", (self._events,))
        if events != self._events:
            return True
        until_next = float("inf") if soonest_ms < 0 else soonest_ms / 1000
        if until_next > 0:
            await changes.wait(min(timeout, until_next), seen)
        return until_next <= timeout or changes.count != seen

    async def cancelled(self, timeout: float) -> Collection[str]:
        if not self._cancelled:
            await self._own_cancelled.wait(timeout)
        fences, self._cancelled = self._cancelled, set()
        return fences

    async def state(self, id: str, token: str | None = None) -> tuple[State, Result | None]:
        state, *result = await self._scripts.call("state", (id, token or ""))
        return State(state.decode()), records.result(result[0]) if result else None

    async def wait_result(self, id: str, token: str | None = None, *, timeout: float) -> Result | None:
        _, result = await self.state(id, token)
        if result is not None or timeout <= 0:
            return result
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._channels.subscribed(self._scripts.key(f"done:{id}")) as changes:
            # Subscribed first, then read: a result that is published in between is either read or announced.
            while True:
                seen = changes.count
                _, result = await self.state(id, token)
                left = deadline - loop.time()
                if result is not None or left <= 0:
                    return result
                await changes.wait(left, seen)

    async def lease_results(self, limit: int, *, lease_ms: int = 300_000) -> Sequence[LeasedResult]:
        if limit <= 0:
            return []
        arguments = (limit, lease_ms, secrets.token_hex(8), LEASED_BYTES)
        rows = await self._scripts.call("lease_results", arguments)
        return [LeasedResult(records.result(fields), fence.decode()) for fence, fields in rows]

    async def ack_results(self, leased: Sequence[LeasedResult]) -> int:
        if not leased:
            return 0
        acked: int = await self._scripts.call("ack_results", [one.fence for one in leased])
        return acked

    async def forget(self, id: str, token: str) -> bool:
        return bool(await self._batches["forget"].call((id, token)))

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        if limit <= 0:
            return []
        with as_queue_errors(self._address):
            found = await self._client.lrange(self._scripts.key("dead"), 0, limit - 1)
        return [records.dead_letter(record) for record in found if isinstance(record, bytes)]

    async def totals(self) -> Totals:
        flat, pending, claimed, delayed = await self._scripts.call("totals", ())
        counts = {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}
        return Totals(**counts, pending=pending, claimed=claimed, delayed=delayed)

    async def backlog(self, limit: int) -> Sequence[TenantBacklog]:
        rows = await self._scripts.call("backlog", (limit,))
        return by_tenant(
            TenantBacklog(tenant.decode(errors="replace"), waiting, int(at)) for tenant, waiting, at in rows
        )

    def _on_cancelled(self, message: bytes) -> None:
        owner, _, fence = message.partition(b"\0")
        if owner in self._owners:
            self._cancelled.add(fence.decode())
            self._own_cancelled.tell()
            self._channels.changes(self._wake_ups).tell()

    async def _fetch_bodies(self, claims: Sequence[Claim], large: Sequence[bool]) -> list[Claim]:
        """Fetch large bodies. A claim whose body cannot be fetched is left to its lease, and claimed again then."""
        complete, abandoned = [], 0
        for claim, fetch in zip(claims, large, strict=True):
            try:
                found = await self._fetch_body(claim) if fetch else claim
            except QueueError as error:
                abandoned += 1
                log.debug(
                    "queue %s: %r cannot be fetched, its claim ends with its lease: %s",
                    self.name,
                    claim.request.id,
                    error,
                )
                continue
            if found is not None:
                complete.append(found)
        if abandoned:
            log.warning(
                "queue %s: %d claims end with their leases: the broker went away", self.name, abandoned
            )
        return complete

    async def _fetch_body(self, claim: Claim) -> Claim | None:
        found = await self._scripts.call("body", (claim.fence,))
        if found == 0:
            return None
        if found:
            return replace(claim, request=replace(claim.request, payload=found[0]))
        code, payload = ErrorCode.PAYLOAD_UNAVAILABLE, validation.error_payload(validation.BODY_GONE)
        lost = Result(
            claim.request.id, claim.request.token, 0, payload, code, validation.BODY_GONE, claim.attempt
        )
        await self.finish(claim, lost)
        return None
