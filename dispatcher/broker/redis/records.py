"""How requests, results and dead letters stand in the broker (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.broker.message import Claim, DeadLetter, DispatchCandidate, ErrorCode, Request, Result
from dispatcher.broker.queue import QueueRules

Word = str | bytes | int


class _Meta(msgspec.Struct, array_like=True, frozen=True):
    """What no script looks at."""

    path: str
    headers: Mapping[str, str]
    metadata: Mapping[str, str]
    objective: str
    tier: int


_decoder = msgspec.msgpack.Decoder(_Meta)


def request_words(
    request: Request, rules: QueueRules, key: str, digest: str, result_list: str
) -> tuple[Word, ...]:
    """One item of submit.lua."""
    meta = _Meta(request.path, request.headers, request.metadata, request.objective, request.tier)
    tier = request.tier if rules.strict_tiers else 0
    who = (request.id, request.token, request.tenant, tier, request.deadline_ms, request.created_ms)
    what = (len(request.payload), msgspec.msgpack.encode(meta), request.payload)
    return (*who, *what, key, digest, result_list)


def candidate(row: Sequence[bytes]) -> DispatchCandidate:
    id, token, tenant, deadline, size = row
    return DispatchCandidate(id.decode(), token.decode(), tenant.decode(), int(deadline), int(size))


def claim(row: Sequence[Any], leased_until_ms: int, body: bytes) -> Claim:
    fence, id, token, tenant, deadline, created, meta, delivery, attempt = row[:9]
    more = _decoder.decode(meta)
    request = Request(
        id.decode(),
        body,
        int(deadline),
        tenant=tenant.decode(),
        path=more.path,
        headers=more.headers,
        metadata=more.metadata,
        objective=more.objective,
        tier=more.tier,
        created_ms=int(created),
        token=token.decode(),
    )
    return Claim(request, fence.decode(), int(delivery), int(attempt), leased_until_ms)


def result(fields: Sequence[bytes]) -> Result:
    """From state.lua and lease.lua."""
    id, token, status, body, code, message, attempts, finished = fields
    return Result(
        id.decode(),
        token.decode(),
        int(status),
        body,
        ErrorCode(code.decode()) if code else None,
        message.decode(),
        int(attempts),
        int(finished),
    )


def dead_letter(record: bytes) -> DeadLetter:
    """From part_lifecycle.lua: `bury`."""
    at, reason_size, id_size, rest = record.split(b" ", 3)
    reason_end = int(reason_size)
    raw_start = reason_end + max(0, int(id_size))
    id = rest[reason_end:raw_start].decode() if int(id_size) >= 0 else None
    return DeadLetter(rest[:reason_end].decode(errors="replace"), rest[raw_start:], id, int(at))
