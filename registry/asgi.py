"""The wire contract as an ASGI application: FastAPI and Starlette users mount it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from registry.contract import Contract, Header
from registry.document import DocumentAnswer
from runtime.tasks import first_of

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_NOT_FOUND = DocumentAnswer(404, body=b'{"detail": "Not Found"}')
_NOT_ALLOWED = DocumentAnswer(
    405, {"Allow": "GET, HEAD", "Content-Type": "application/json"}, b'{"detail": "Method Not Allowed"}'
)


class ContractApp:
    """`app.mount("/", ContractApp(contract))`, after the application's own routes; or served by itself.

    A server that stops waits for answers under way, so for held GETs too, and tells an application of it (`lifespan`)
    only after that: without `handle.drain_on_sigterm()` the worker stays in the rotation meanwhile.
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
                raise ValueError(f"{other!r} is no ASGI scope that this application knows")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: DocumentAnswer | None
        route = self._routes.get(_path(scope))
        if route is None:
            answer = _NOT_FOUND
        elif scope["method"] not in ("GET", "HEAD"):
            answer = _NOT_ALLOWED
        else:
            answer = await _unless_gone(route(_header(scope)), receive)
        if answer is not None:
            await _send(answer, scope, send)


def _path(scope: Scope) -> str:
    """The path below the mount point: ASGI's `path` has the mount point in it, where the server follows the standard."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _header(scope: Scope) -> Header:
    def header(name: str) -> str | None:
        wanted = name.lower().encode()
        lines = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]
        return ", ".join(lines) if lines else None

    return header


async def _unless_gone(answering: Awaitable[DocumentAnswer], receive: Receive) -> DocumentAnswer | None:
    """The answer; None when the client went away first, so that its GET is not held any longer."""
    return await first_of(answering, _disconnected(receive))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(answer: DocumentAnswer, scope: Scope, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    if answer.status != 304:
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    body = b"" if scope["method"] == "HEAD" else answer.body
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
