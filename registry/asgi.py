"""Serves the wire contract as an ASGI application, to be mounted in FastAPI or Starlette."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from adsum.tasks import first_of
from registry.contract import Contract, Header
from registry.document import DocumentResponse

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_NOT_FOUND = DocumentResponse(404, body=b'{"detail": "Not Found"}')
_NOT_ALLOWED = DocumentResponse(
    405, {"Allow": "GET, HEAD", "Content-Type": "application/json"}, b'{"detail": "Method Not Allowed"}'
)


class ContractApp:
    """Mount it last, `app.mount("/", ContractApp(contract))`, or serve it by itself.

    ASGI servers send `lifespan.shutdown` only after all responses are complete, and held GETs are such responses.
    So `lifespan` is too late to drain: without `handle.drain_on_sigterm()` the worker stays ready while it stops.
    """

    def __init__(self, contract: Contract) -> None:
        self._routes = contract.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await _lifespan(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})
            case other:
                raise ValueError(
                    f"{other!r} is not a supported ASGI scope; expected http, lifespan or websocket"
                )

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: DocumentResponse | None
        route = self._routes.get(_path(scope))
        if route is None:
            response = _NOT_FOUND
        elif scope["method"] not in ("GET", "HEAD"):
            response = _NOT_ALLOWED
        else:
            response = await _respond_unless_disconnected(route(_header(scope)), receive)
        if response is not None:
            await _send(response, scope, send)


def _path(scope: Scope) -> str:
    """The path below the mount point."""
    # `path` includes `root_path` (https://asgi.readthedocs.io/en/latest/specs/www.html#wsgi-compatibility);
    # Starlette before 0.33 removed it
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _header(scope: Scope) -> Header:
    def header(name: str) -> str | None:
        wanted = name.lower().encode()
        lines = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]
        return ", ".join(lines) if lines else None

    return header


async def _respond_unless_disconnected(
    response: Awaitable[DocumentResponse], receive: Receive
) -> DocumentResponse | None:
    """None if the client disconnects first: a held GET then ends at once and its slot is free."""
    return await first_of(response, _wait_for_disconnect(receive))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(response: DocumentResponse, scope: Scope, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    if response.status != 304:  # it has no body, and a length of 0 would describe the 200 (RFC 9110 §8.6)
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    body = b"" if scope["method"] == "HEAD" else response.body
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
