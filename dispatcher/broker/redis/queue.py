"""A queue on Redis: every step is one script there, and what many tasks ask in one turn goes in one round trip."""

import asyncio
import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis

from dispatcher.broker.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Request,
    Result,
    new_token,
)
from dispatcher.broker.queue import ConflictError, LeasedResult, QueueError, QueueRules, State, Totals
from dispatcher.broker.redis import records
from dispatcher.broker.redis.batching import Arguments, CommandBatcher
from dispatcher.broker.redis.connection import as_queue_errors
from dispatcher.broker.redis.scripting import QueueScripts
from dispatcher.broker.redis.subscriptions import Hear, Subscriptions
from dispatcher.broker.validation import (
    BODY_GONE,
    check_key,
    check_request,
    counted_as,
    deadline_error,
    digest,
    error_payload,
)
from dispatcher.broker.wake_up import Changes
from runtime.resource_owner import ResourceOwner

INLINE: Final = 64 * 1024
"""Bytes of a body that comes with its claim; a larger one is fetched by its own."""
SWEPT: Final = 500
"""Requests that one pass of a sweep touches; the broker serves nobody else meanwhile."""
RESULT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of results after which a lease of many stops."""
KEY_TAKEN: Final = "the idempotency key was used for another request: same tenant, path and payload expected"

log = logging.getLogger(__name__)


class RedisQueue(ResourceOwner):
    """As `dispatcher.broker.queue.Queue`; an async context manager."""

    def __init__(self, client: Redis, place: str, name: str, rules: QueueRules) -> None:
        self._client = client
        self._place = place
        self._name = name
        self._rules = rules
        self._scripts = QueueScripts(client, place, name, rules)
        self._batches = {word: self._scripts.batched(word) for word in ("submit", "finish", "retry")}
        self._stirred, self._cancellations = self._scripts.key("stirred"), self._scripts.key("cancelled")
        heard: dict[str, Hear | None] = {self._stirred: None, self._cancellations: self._hear_cancelled}
        self._channels = Subscriptions(client, heard)
        self._events = b"0"
        self._owners: set[bytes] = set()
        self._cancelled: set[str] = set()
        self._own_cancelled = Changes()

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._channels)
        for batch in self._batches.values():
            await self._stack.enter_async_context(batch)

    @property
    def name(self) -> str:
        return self._name

    async def submit(self, request: Request, *, idempotency_key: str | None = None) -> Request:
        check_request(request, self._rules)
        key, body = "", ""
        if idempotency_key is not None:
            check_key(idempotency_key)
            key, body = idempotency_key, digest(request)
        words = records.request_words(request, self._rules, key, body, self._rules.result_list)
        kind, *answer = await self._batch("submit").call(words)
        if kind == b"conflict":
            raise ConflictError(KEY_TAKEN)
        if kind == b"past":
            raise deadline_error(request, answer[0])
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
        words: Arguments = (limit, owner, secrets.token_hex(8), INLINE, *skip_tenants)
        events, until_ms, rows = await self._scripts.call("claim", words)
        self._events = events
        claims = [records.claim(row, until_ms, row[9]) for row in rows]
        if not any(int(row[10]) > INLINE for row in rows):
            return claims
        return await self._with_bodies(claims, [int(row[10]) > INLINE for row in rows])

    async def extend(self, claims: Sequence[Claim]) -> Sequence[bool]:
        if not claims:
            return []
        answers = await self._scripts.call("extend", [claim.fence for claim in claims])
        return [answer == 1 for answer in answers]

    async def finish(self, claim: Claim, result: Result) -> bool:
        code = result.error_code or ""
        what = (result.status_code, result.payload, code, result.error_message, result.attempts)
        return bool(await self._batch("finish").call((claim.fence, counted_as(result), *what)))

    async def retry(self, claim: Claim, delay_ms: int) -> bool:
        return bool(await self._batch("retry").call((claim.fence, delay_ms)))

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
            more: int = await self._scripts.call("sweep", (SWEPT,))
            touched += more
            if more < SWEPT:
                return touched

    async def reject(self, raw: bytes, reason: str, *, id: str | None = None, code: ErrorCode) -> None:
        token = new_token()
        counter = counted_as(Result(id or "", token, 0, b"", code))
        known = int(id is not None)
        words = (raw, reason, known, id or "", token, code, counter, self._rules.result_list)
        await self._scripts.call("reject", words)

    async def wait(self, timeout: float) -> bool:
        changes = self._channels.changes(self._stirred)
        heard = changes.count
        events, soonest_ms = await self._scripts.call("arm", (self._events,))
        if events != self._events:
            return True
        until_next = float("inf") if soonest_ms < 0 else soonest_ms / 1000
        if until_next > 0:
            await changes.wait(min(timeout, until_next), heard)
        return until_next <= timeout or changes.count != heard

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
        return await self._result_within(id, token, timeout)

    async def lease_results(self, limit: int, *, lease_ms: int = 300_000) -> Sequence[LeasedResult]:
        if limit <= 0:
            return []
        words = (limit, lease_ms, secrets.token_hex(8), RESULT_BYTES)
        rows = await self._scripts.call("lease", words)
        return [LeasedResult(records.result(fields), fence.decode()) for fence, fields in rows]

    async def ack_results(self, leased: Sequence[LeasedResult]) -> int:
        if not leased:
            return 0
        acked: int = await self._scripts.call("ack", [one.fence for one in leased])
        return acked

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        if limit <= 0:
            return []
        with as_queue_errors(self._place):
            found = await self._client.lrange(self._scripts.key("dead"), 0, limit - 1)
        return [records.dead_letter(record) for record in found if isinstance(record, bytes)]

    async def totals(self) -> Totals:
        flat, pending, claimed, delayed = await self._scripts.call("totals", ())
        counts = {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}
        return Totals(**counts, pending=pending, claimed=claimed, delayed=delayed)

    def _batch(self, word: str) -> CommandBatcher:
        return self._batches[word]

    def _hear_cancelled(self, said: bytes) -> None:
        owner, _, fence = said.partition(b"\0")
        if owner in self._owners:
            self._cancelled.add(fence.decode())
            self._own_cancelled.tell()
            self._channels.changes(self._stirred).tell()

    async def _with_bodies(self, claims: Sequence[Claim], large: Sequence[bool]) -> list[Claim]:
        """Fetch what was too large to come along. One that cannot be fetched is claimed again when its lease ends."""
        whole, left = [], 0
        for claim, fetch in zip(claims, large, strict=True):
            try:
                found = await self._fetched(claim) if fetch else claim
            except QueueError as error:
                left += 1
                log.debug("%s: %r is left to its lease: %s", self._name, claim.request.id, error)
                continue
            if found is not None:
                whole.append(found)
        if left:
            log.warning("%s: %d claims are left to their leases: the broker went away", self._name, left)
        return whole

    async def _fetched(self, claim: Claim) -> Claim | None:
        with as_queue_errors(self._place):
            body = await self._client.get(self._scripts.key("b:" + claim.fence.partition(".")[0]))
        if isinstance(body, bytes):
            return replace(claim, request=replace(claim.request, payload=body))
        code, said = ErrorCode.PAYLOAD_UNAVAILABLE, error_payload(BODY_GONE)
        lost = Result(claim.request.id, claim.request.token, 0, said, code, BODY_GONE, claim.attempt)
        await self.finish(claim, lost)
        return None

    async def _result_within(self, id: str, token: str | None, timeout: float) -> Result | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._channels.watching(self._scripts.key(f"done:{id}")) as changes:
            while True:
                seen = changes.count
                _, result = await self.state(id, token)
                left = deadline - loop.time()
                if result is not None or left <= 0:
                    return result
                await changes.wait(left, seen)
