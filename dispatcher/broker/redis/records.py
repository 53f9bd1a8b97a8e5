"""Converts requests, results and dead letters to the arguments of scripts, and back from their answers (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.broker.contract.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Request,
    Result,
)
from dispatcher.broker.contract.queue import QueueRules

Word = str | bytes | int


class _Meta(msgspec.Struct, array_like=True, frozen=True):
    """The part of a request that no script reads, as one MessagePack value."""

    path: str
    headers: Mapping[str, str]
    metadata: Mapping[str, str]
    objective: str
    tier: int


_decoder = msgspec.msgpack.Decoder(_Meta)


def request_arguments(
    request: Request, rules: QueueRules, key: str, digest: str, result_list: str
) -> tuple[Word, ...]:
    """One item of submit.lua; the order is that of part_accept.lua."""
    meta = _Meta(request.path, request.headers, request.metadata, request.objective, request.tier)
    tier = request.tier if rules.strict_tiers else 0
    identity = (request.id, request.token, request.tenant, tier, request.deadline_ms, request.created_ms)
    body = (len(request.payload), msgspec.msgpack.encode(meta), request.payload)
    return (*identity, *body, key, digest, result_list)


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
    failures, disconnects = (int(count or 0) for count in row[11:13])
    return Claim(request, fence.decode(), int(delivery), int(attempt), leased_until_ms, failures, disconnects)


def result(fields: Sequence[bytes]) -> Result:
    """From the fields that state.lua and lease_results.lua answer."""
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
    """From the record that `add_dead_letter` of part_request_states.lua writes: three numbers, then the bytes they count."""
    # bounded: three splits at most
    at, reason_size, id_size, rest = record.split(b" ", 3)
    reason_end = int(reason_size)
    raw_start = reason_end + max(0, int(id_size))
    id = rest[reason_end:raw_start].decode() if int(id_size) >= 0 else None
    return DeadLetter(rest[:reason_end].decode(errors="replace"), rest[raw_start:], id, int(at))
