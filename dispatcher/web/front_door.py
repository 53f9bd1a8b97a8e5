"""The OpenAI-compatible HTTP API of the queue: `X-Dispatch: enqueue` returns an id, under which the answer is found later."""

import asyncio
import hashlib
import hmac
import json
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from aiohttp import web

from adsum.tasks import BackgroundTasks
from adsum.tracing.span import Tracer
from adsum.tracing.trace_context import CONTEXT_HEADERS, TRACEPARENT, TRACESTATE
from adsum.units import parse_duration
from dispatcher.broker.contract.message import Request, Result, new_token
from dispatcher.broker.contract.queue import ConflictError, Queue, QueueError, QueueFullError, State
from dispatcher.delivery.delivery_spans import context_of, is_context
from dispatcher.delivery.route import DEFAULT_PATHS, Route
from dispatcher.web.request_bodies import BodyMemoryError, BodyTimeoutError, BodyTooLargeError, RequestBodies
from dispatcher.web.request_view import render_request

MODE_HEADER = "X-Dispatch"
DEADLINE_HEADER = "X-Dispatch-Deadline"
"""A duration from now, such as "30m"."""
ENQUEUEING = "enqueue-request"
"""The span of a submission; the Go processor has no such door."""
MAX_WAIT = 60.0
"""Seconds for which one GET waits for its result."""
DEADLINE_GRACE = 1.0
"""Seconds after its deadline by which the sweep has answered a request."""


@dataclass(frozen=True, slots=True)
class FrontDoorQueue:
    """The queue behind the front door. `deadline`: the default, in seconds; `tokens`: tenant → bearer token, empty: no check."""

    queue: Queue
    route: Route
    deadline: float
    tokens: Mapping[str, str]
    max_payload: int


Handler = Callable[[web.Request, FrontDoorQueue, str], Awaitable[web.StreamResponse]]


class FrontDoor:
    """The routes. `door` is called for each request; None: no request can be accepted now.

    `max_waiting`: clients that wait for results at once. A client beyond that gets at once what it would get after its time.
    """

    def __init__(
        self,
        door: Callable[[], FrontDoorQueue | None],
        now_ms: Callable[[], int],
        max_waiting: int,
        bodies: RequestBodies | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._queue_now = door
        self._now_ms = now_ms
        self._max_waiting = max_waiting
        self._waiting = 0
        self._forgetting = BackgroundTasks()
        self._bodies = bodies or RequestBodies()
        self._tracer = tracer

    def add_routes(self, app: web.Application) -> None:
        for path in DEFAULT_PATHS:
            app.router.add_post(path, self._authenticated(self._submit))
        app.router.add_get("/v1/requests/{id}", self._authenticated(self._get))
        app.router.add_delete("/v1/requests/{id}", self._authenticated(self._cancel))
        app.on_cleanup.append(lambda _: self._forgetting.aclose())

    def _authenticated(self, handle: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guard(request: web.Request) -> web.StreamResponse:
            if (door := self._queue_now()) is None:
                why = "its file has no front_door, or it is not ready (/readyz says why)"
                return _json_error(503, f"this dispatcher accepts no requests over HTTP now: {why}")
            if (tenant := _tenant(request, door.tokens)) is None:
                return _json_error(401, "the bearer token is missing or unknown")
            try:
                return await handle(request, door, tenant)
            except (QueueError, ValueError, BodyTimeoutError, BodyMemoryError) as error:
                return _error_response(error)

        return guard

    async def _submit(self, request: web.Request, door: FrontDoorQueue, tenant: str) -> web.StreamResponse:
        mode = request.headers.get(MODE_HEADER, "").strip().lower()
        if mode not in ("enqueue", "wait"):
            expected = "enqueue (answered 202 at once) or wait (answered when it is done)"
            return _json_error(
                400, f"the header {MODE_HEADER} is {repr(mode) if mode else 'missing'}; expected {expected}"
            )
        key = request.headers.get("Idempotency-Key") or None
        async with self._bodies.read(request, door.max_payload) as body:
            _check_json_object(body)
            queued = self._parse_request(request, body, door, tenant)
            accepted = await self._enqueue(door.queue, queued, key)
        del body, queued  # a client that waits must not keep a copy of the body in memory
        if mode == "wait":
            remaining = max(0.0, (accepted.deadline_ms - self._now_ms()) / 1000 + DEADLINE_GRACE)
            result = await self._wait(door.queue, accepted.id, accepted.token, remaining)
            if result is not None:
                answer = _result_response(result)
                if key is None:  # who has a key may ask again
                    answer.report_delivery(request.transport, partial(self._forget, door.queue, accepted))
                return answer
        # 202 points to a page with the status of the request (RFC 9110, 15.3.3).
        document = {
            "id": accepted.id,
            "object": "dispatch.request",
            "status": "pending",
            "deadline_ms": accepted.deadline_ms,
        }
        return web.json_response(document, status=202, headers={"Location": f"/v1/requests/{accepted.id}"})

    async def _enqueue(self, queue: Queue, request: Request, key: str | None) -> Request:
        if self._tracer is None:
            return await queue.submit(request, idempotency_key=key)
        trace = self._tracer.begin(ENQUEUEING, "producer", context_of(request))
        if trace.traceparent is not None:
            kept = {
                name: text
                for name, text in request.headers.items()
                if not (trace.begins and name == TRACESTATE)
            }
            request = replace(request, headers={**kept, TRACEPARENT: trace.traceparent})
        if trace.span is None:
            return await queue.submit(request, idempotency_key=key)
        trace.span.set("gen_ai.request.id", request.id)
        trace.span.set("llm_d.async.queue.name", queue.name)
        try:
            return await queue.submit(request, idempotency_key=key)
        except Exception as error:
            trace.span.fail(type(error).__name__)
            raise
        finally:
            trace.span.end()

    def _parse_request(self, request: web.Request, body: bytes, door: FrontDoorQueue, tenant: str) -> Request:
        given = request.headers
        seconds = parse_duration(given[DEADLINE_HEADER]) if DEADLINE_HEADER in given else door.deadline
        return Request(
            id=f"req-{new_token()}{_tenant_suffix(tenant)}",
            payload=body,
            deadline_ms=self._now_ms() + math.ceil(seconds * 1000),
            tenant=tenant,
            path=door.route.request_path(request.path),
            headers=door.route.forwarded_headers(
                {name: value for name, value in given.items() if _is_forwarded(door.route, name, value)}
            ),
            created_ms=self._now_ms(),
        )

    async def _get(self, request: web.Request, door: FrontDoorQueue, tenant: str) -> web.StreamResponse:
        id = request.match_info["id"]
        if not _is_visible_to(id, tenant, door):
            return _not_found(id)
        seconds = min(MAX_WAIT, float(request.query.get("wait", 0.0)))
        state, result = await door.queue.state(id)
        if seconds > 0 and result is None and state not in (State.UNKNOWN, State.DONE):
            await self._wait(door.queue, id, None, seconds)
            state, result = await door.queue.state(id)
        return _state_response(id, state, result)

    async def _cancel(self, request: web.Request, door: FrontDoorQueue, tenant: str) -> web.StreamResponse:
        id = request.match_info["id"]
        if not _is_visible_to(id, tenant, door):
            return _not_found(id)
        await door.queue.cancel(id)
        return _state_response(id, *await door.queue.state(id))

    async def _wait(self, queue: Queue, id: str, token: str | None, seconds: float) -> Result | None:
        """The result; None after that time, or at once if too many wait."""
        if self._waiting >= self._max_waiting:
            return None
        self._waiting += 1
        try:
            return await queue.wait_result(id, token, timeout=seconds)
        finally:
            self._waiting -= 1

    def _forget(self, queue: Queue, delivered: Request) -> None:
        """Remove a result that its client has: nobody else knows its id. Kept for its time if that fails."""

        async def forget() -> None:
            with suppress(QueueError):
                await queue.forget(delivered.id, delivered.token)

        self._forgetting.start(forget(), f"forget {delivered.id}")


class _JsonAnswer(web.Response):
    """A response that can report its delivery: the kernel has all of it, and the connection is open."""

    _transport: asyncio.Transport | None = None
    _delivered: Callable[[], None]

    def report_delivery(self, transport: asyncio.Transport | None, delivered: Callable[[], None]) -> None:
        """`delivered` is called at most once. After a crash, or for a client that went away, it is not."""
        self._transport, self._delivered = transport, delivered

    async def write_eof(self, data: bytes = b"") -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(0)  # the write below returns when the buffer is empty
        await super().write_eof(data)
        transport, self._transport = self._transport, None
        if transport is not None and not transport.is_closing():
            self._delivered()


def _state_response(id: str, state: State, result: Result | None) -> web.Response:
    if state is State.UNKNOWN:
        return _not_found(id)
    return web.json_response(render_request(id, state, result))


def _not_found(id: str) -> web.Response:
    return _json_error(404, f"there is no request {id!r}; results are kept for a while only")


def _tenant_suffix(tenant: str) -> str:
    """The suffix of the ids of a tenant's requests. It is no secret: the rest of an id has 128 random bits."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]


def _is_visible_to(id: str, tenant: str, door: FrontDoorQueue) -> bool:
    """Whether the tenant may see the request: its id has the tenant's suffix. Without tokens everybody may see all."""
    return not door.tokens or (id.startswith("req-") and id.endswith(_tenant_suffix(tenant)))


def _check_json_object(body: bytes) -> None:
    """Raises ValueError if the body is not a JSON object. Its fields are not decoded: the target does that."""
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the body is not a JSON object: {error}") from error


def _result_response(result: Result) -> _JsonAnswer:
    if result.status_code and result.error_code is None:
        return _JsonAnswer(status=result.status_code, body=result.payload, content_type="application/json")
    status = 504 if result.error_code == "DEADLINE_EXCEEDED" else 502
    return _json_error(status, result.error_message or str(result.error_code), code=str(result.error_code))


def _tenant(request: web.Request, tokens: Mapping[str, str]) -> str | None:
    if not tokens:
        return "default"
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    # compare_digest: the time of == would tell how many characters of a token are right.
    given = token.strip().encode(errors="surrogateescape") if kind.lower() == "bearer" else b""
    matching = [tenant for tenant, known in tokens.items() if hmac.compare_digest(known.encode(), given)]
    return matching[0] if matching else None


def _is_forwarded(route: Route, name: str, value: str) -> bool:
    lower = name.lower()
    if lower in CONTEXT_HEADERS:
        return is_context(value)  # a trace that cannot go on is no reason to refuse a request
    return lower != "accept" and route.forwards(lower)  # Accept is about the response of this door


def _error_response(error: Exception) -> web.Response:
    if isinstance(error, ConflictError):
        return _json_error(409, str(error))
    if isinstance(error, BodyTooLargeError):
        return _json_error(413, str(error))
    if isinstance(error, BodyTimeoutError):
        refusal = _json_error(408, str(error))
        refusal.force_close()  # the rest of the body is not read (RFC 9110, 15.5.9)
        return refusal
    if isinstance(error, QueueFullError):
        return _json_error(429, str(error), _soon(), code="queue_full")
    if isinstance(error, QueueError):  # its text is for operators: it has the broker's address
        return _json_error(503, "the queue is away, or takes nothing in now; try again", _soon())
    if isinstance(error, BodyMemoryError):
        return _json_error(503, str(error), _soon())
    # an illegal header, a malformed deadline, a request that the queue rejects
    return _json_error(400, str(error))


def _soon() -> dict[str, str]:
    """Spread, so that clients that were refused together do not come back together."""
    return {"Retry-After": str(random.randint(1, 4))}


def _json_error(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> _JsonAnswer:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": code}}
    return _JsonAnswer(text=json.dumps(body), status=status, headers=headers, content_type="application/json")
