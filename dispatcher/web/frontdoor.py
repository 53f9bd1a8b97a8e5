"""The OpenAI-compatible way in: `X-Dispatch: enqueue` in place of an answer now, and the answer under its id later."""

import hashlib
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from dispatcher.broker.message import Request, Result, new_token
from dispatcher.broker.queue import ConflictError, Queue, QueueError, State
from dispatcher.delivery.outgoing import DEFAULT_PATHS, Route, caller_headers
from dispatcher.web.bodies import Bodies, NoRoomError, TooLargeError, TooSlowError
from dispatcher.web.request_view import described
from runtime.durations import parse_duration

MODE = "X-Dispatch"
DEADLINE = "X-Dispatch-Deadline"
"""How long from now, as "30m"."""
LONGEST_WAIT = 60.0
"""Seconds that one GET is held, at most."""
GRACE = 1.0
"""Seconds after its deadline within which a request is certainly answered."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where requests go that come in. `deadline` in seconds; `tokens`: tenant → bearer token, empty: no check."""

    queue: Queue
    route: Route
    deadline: float
    tokens: Mapping[str, str]
    max_payload: int


Handler = Callable[[web.Request, Door, str], Awaitable[web.StreamResponse]]


class FrontDoor:
    """Its routes; `door` is asked at each request: None, nothing can be taken at this moment."""

    def __init__(
        self, door: Callable[[], Door | None], now_ms: Callable[[], int], bodies: Bodies | None = None
    ) -> None:
        self._door = door
        self._now_ms = now_ms
        self._bodies = bodies or Bodies()

    def add_routes(self, app: web.Application) -> None:
        """Under the paths of the OpenAI API."""
        for path in DEFAULT_PATHS:
            app.router.add_post(path, self._guarded(self._submit))
        app.router.add_get("/v1/requests/{id}", self._guarded(self._show))
        app.router.add_delete("/v1/requests/{id}", self._guarded(self._cancel))

    def _guarded(self, handle: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guard(request: web.Request) -> web.StreamResponse:
            if (door := self._door()) is None:
                return _refusal(503, "no queue takes requests here at this moment")
            if (tenant := _tenant(request, door.tokens)) is None:
                return _refusal(401, "the bearer token is missing or not known")
            try:
                return await handle(request, door, tenant)
            except (QueueError, ValueError, TooSlowError, NoRoomError) as error:
                return _refused(error)

        return guard

    async def _submit(self, request: web.Request, door: Door, tenant: str) -> web.StreamResponse:
        mode = request.headers.get(MODE, "").strip().lower()
        if mode not in ("enqueue", "wait"):
            expected = "enqueue (answered 202 at once) or wait (answered when it is done)"
            return _refusal(
                400, f"the header {MODE} is {repr(mode) if mode else 'missing'}; expected {expected}"
            )
        key = request.headers.get("Idempotency-Key") or None
        async with self._bodies.read(request, door.max_payload) as body:
            _check(body)
            asked = self._asked(request, body, door, tenant)
            accepted = await door.queue.submit(asked, idempotency_key=key)
        del body, asked  # a client that waits holds no copy of what the queue has
        if mode == "wait":
            remaining = max(0.0, (accepted.deadline_ms - self._now_ms()) / 1000 + GRACE)
            result = await door.queue.wait_result(accepted.id, accepted.token, timeout=remaining)
            if result is not None:
                return _as_answered(result)
        document = {
            "id": accepted.id,
            "object": "dispatch.request",
            "status": "pending",
            "deadline_ms": accepted.deadline_ms,
        }
        return web.json_response(document, status=202, headers={"Location": f"/v1/requests/{accepted.id}"})

    def _asked(self, request: web.Request, body: bytes, door: Door, tenant: str) -> Request:
        given = request.headers
        seconds = parse_duration(given[DEADLINE]) if DEADLINE in given else door.deadline
        return Request(
            id=f"req-{new_token()}{_mark(tenant)}",
            payload=body,
            deadline_ms=self._now_ms() + math.ceil(seconds * 1000),
            tenant=tenant,
            path=door.route.target_path(request.path),
            headers=caller_headers({name: value for name, value in given.items() if _is_own(name)}),
            created_ms=self._now_ms(),
        )

    async def _show(self, request: web.Request, door: Door, tenant: str) -> web.StreamResponse:
        id = request.match_info["id"]
        if not _is_of(id, tenant, door):
            return _unknown(id)
        if "wait" in request.query:
            seconds = min(LONGEST_WAIT, float(request.query["wait"]))
            await door.queue.wait_result(id, timeout=max(0.0, seconds))
        return await _shown(door.queue, id)

    async def _cancel(self, request: web.Request, door: Door, tenant: str) -> web.StreamResponse:
        id = request.match_info["id"]
        if not _is_of(id, tenant, door):
            return _unknown(id)
        await door.queue.cancel(id)
        return await _shown(door.queue, id)


async def _shown(queue: Queue, id: str) -> web.Response:
    state, result = await queue.state(id)
    if state is State.UNKNOWN:
        return _unknown(id)
    return web.json_response(described(id, state, result))


def _unknown(id: str) -> web.Response:
    return _refusal(404, f"there is no request {id!r}; results are kept for a while only")


def _mark(tenant: str) -> str:
    """What ends the ids of a tenant's requests. It is no secret: what comes before it cannot be guessed."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]


def _is_of(id: str, tenant: str, door: Door) -> bool:
    """Whether this tenant may see it: what came in here under its token. Without tokens everybody sees everything."""
    return not door.tokens or (id.startswith("req-") and id.endswith(_mark(tenant)))


def _check(body: bytes) -> None:
    """Raises ValueError for what is no JSON object."""
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the body is not a JSON object: {error}") from error


def _as_answered(result: Result) -> web.Response:
    if result.status_code and result.error_code is None:
        return web.Response(status=result.status_code, body=result.payload, content_type="application/json")
    status = 504 if result.error_code == "DEADLINE_EXCEEDED" else 502
    return _refusal(status, result.error_message or str(result.error_code), code=str(result.error_code))


def _tenant(request: web.Request, tokens: Mapping[str, str]) -> str | None:
    if not tokens:
        return "default"
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    given = token.strip().encode(errors="surrogateescape") if kind.lower() == "bearer" else b""
    matching = [tenant for tenant, known in tokens.items() if hmac.compare_digest(known.encode(), given)]
    return matching[0] if matching else None


def _is_own(name: str) -> bool:
    lower = name.lower()
    return lower == "content-type" or lower.startswith("x-")


def _refused(error: Exception) -> web.Response:
    if isinstance(error, ConflictError):
        return _refusal(409, str(error))
    if isinstance(error, TooLargeError):
        return _refusal(413, str(error))
    if isinstance(error, TooSlowError):
        refusal = _refusal(408, str(error))
        refusal.force_close()  # what is left of the body is not read (RFC 9110 15.5.9)
        return refusal
    if isinstance(error, QueueError | NoRoomError):
        return _refusal(503, str(error), {"Retry-After": "1"})
    return _refusal(400, str(error))  # an illegal header, a deadline that is none, what the queue refuses


def _refusal(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": code}}
    return web.json_response(body, status=status, headers=headers)
