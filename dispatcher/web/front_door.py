"""The OpenAI-compatible HTTP API of the queue: `X-Dispatch: enqueue` returns an id, under which the answer is found later."""

import hashlib
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import msgspec
from aiohttp import web

from dispatcher.broker.message import Request, Result, new_token
from dispatcher.broker.queue import ConflictError, Queue, QueueError, State
from dispatcher.delivery.delivery_spans import context_of, is_context
from dispatcher.delivery.route import DEFAULT_PATHS, Route, caller_headers
from dispatcher.web.request_bodies import BodyMemoryError, BodyTimeoutError, BodyTooLargeError, RequestBodies
from dispatcher.web.request_view import render_request
from runtime.durations import parse_duration
from runtime.tracing.span import Tracer
from runtime.tracing.trace_context import CONTEXT_HEADERS, TRACEPARENT, TRACESTATE

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
    """The routes. `door` is called for each request; None: no request can be accepted now."""

    def __init__(
        self,
        door: Callable[[], FrontDoorQueue | None],
        now_ms: Callable[[], int],
        bodies: RequestBodies | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._queue_now = door
        self._now_ms = now_ms
        self._bodies = bodies or RequestBodies()
        self._tracer = tracer

    def add_routes(self, app: web.Application) -> None:
        for path in DEFAULT_PATHS:
            app.router.add_post(path, self._authenticated(self._submit))
        app.router.add_get("/v1/requests/{id}", self._authenticated(self._get))
        app.router.add_delete("/v1/requests/{id}", self._authenticated(self._cancel))

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
            result = await door.queue.wait_result(accepted.id, accepted.token, timeout=remaining)
            if result is not None:
                return _result_response(result)
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
            headers=caller_headers(
                {name: value for name, value in given.items() if _is_forwarded(name, value)}
            ),
            created_ms=self._now_ms(),
        )

    async def _get(self, request: web.Request, door: FrontDoorQueue, tenant: str) -> web.StreamResponse:
        id = request.match_info["id"]
        if not _is_visible_to(id, tenant, door):
            return _not_found(id)
        if "wait" in request.query:
            seconds = min(MAX_WAIT, float(request.query["wait"]))
            await door.queue.wait_result(id, timeout=max(0.0, seconds))
        return await _state_response(door.queue, id)

    async def _cancel(self, request: web.Request, door: FrontDoorQueue, tenant: str) -> web.StreamResponse:
        id = request.match_info["id"]
        if not _is_visible_to(id, tenant, door):
            return _not_found(id)
        await door.queue.cancel(id)
        return await _state_response(door.queue, id)


async def _state_response(queue: Queue, id: str) -> web.Response:
    state, result = await queue.state(id)
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


def _result_response(result: Result) -> web.Response:
    if result.status_code and result.error_code is None:
        return web.Response(status=result.status_code, body=result.payload, content_type="application/json")
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


def _is_forwarded(name: str, value: str) -> bool:
    lower = name.lower()
    if lower in CONTEXT_HEADERS:
        return is_context(value)  # a trace that cannot go on is no reason to refuse a request
    return lower == "content-type" or lower.startswith("x-")


def _error_response(error: Exception) -> web.Response:
    if isinstance(error, ConflictError):
        return _json_error(409, str(error))
    if isinstance(error, BodyTooLargeError):
        return _json_error(413, str(error))
    if isinstance(error, BodyTimeoutError):
        refusal = _json_error(408, str(error))
        refusal.force_close()  # the rest of the body is not read (RFC 9110, 15.5.9)
        return refusal
    if isinstance(error, QueueError | BodyMemoryError):
        return _json_error(503, str(error), {"Retry-After": "1"})
    # an illegal header, a malformed deadline, a request that the queue rejects
    return _json_error(400, str(error))


def _json_error(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": code}}
    return web.json_response(body, status=status, headers=headers)
