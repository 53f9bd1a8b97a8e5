"""Answers `/metadata`, `/health` and `/live`: checks the token, holds GETs. `server` and `asgi` put it on HTTP."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import anyio

from discovery.errors import RegistrationError
from discovery.instance import HEALTH_PATH, LIVE_PATH, METADATA_PATH, InstanceStatus
from registry.document import MAX_WAIT, DocumentResponse, Hold, MetadataRequest, PublishedDocument, Revision

Header: TypeAlias = Callable[[str], str | None]
"""Returns a header field of the request by name, several lines joined by commas; None if it is absent."""

MAX_HELD: Final = 2048
"""Held GETs in one process: one for each process that watches this worker. Further watchers poll."""

_NOT_REGISTERED: Final = DocumentResponse(503, body=b'{"error": "this worker is not registered yet"}')
_UNAUTHORIZED: Final = DocumentResponse(
    401,
    {"Content-Type": "application/json", "WWW-Authenticate": 'Bearer realm="adsum"'},
    b'{"error": "this needs the bearer token that the worker was given"}',
)


class Contract:
    """The handlers of `/metadata`, `/health` and `/live` for one instance at a time; 503 until one is registered.

    Mount it in the worker's own application (`server.add_routes`, `asgi.ContractApp`) and pass it to `registry.open`.
    With a `token`, `/metadata` requires it as a bearer token; kubelet's probes have none, so `/health` and `/live` do
    not. At most `max_held` GETs are held, each for at most `max_wait` seconds; further ones are answered at once.
    """

    def __init__(
        self, *, token: str | None = None, max_held: int = MAX_HELD, max_wait: float = MAX_WAIT
    ) -> None:
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._max_held = max_held
        self.held = 0
        """The number of GETs that are held now."""
        self._max_wait = max_wait
        self._document: PublishedDocument | None = None
        self._bound = False

    @property
    def routes(self) -> Mapping[str, Callable[[Header], Awaitable[DocumentResponse]]]:
        """The handler of GET and HEAD for each path."""
        return MappingProxyType(
            {METADATA_PATH: self.metadata, HEALTH_PATH: self.health, LIVE_PATH: self.live}
        )

    def bind(self, document: PublishedDocument) -> None:
        """Serve this instance's document. RegistrationError while another instance uses this contract."""
        if self._bound and self._document is not None:
            raise RegistrationError(
                f"this contract already serves instance {self._document.current.instance_id!r}: "
                "mount another one, or pass none so that each instance gets a port of its own"
            )
        self._document, self._bound = document, True

    def unbind(self) -> None:
        """Serve the document of the instance that left as DRAINING, until another instance is bound."""
        if self._document is not None:
            self._document.set_status(InstanceStatus.DRAINING)
        self._bound = False

    async def metadata(self, header: Header) -> DocumentResponse:
        if not self._is_authorized(header):
            return _UNAUTHORIZED
        if self._document is None:
            return _NOT_REGISTERED
        request = MetadataRequest.from_headers(
            header("If-None-Match"), header("Prefer"), max_wait=self._max_wait
        )
        asked = self._document.current
        response = asked.respond(request, can_hold=self.held < self._max_held)
        if isinstance(response, DocumentResponse):
            return response
        await self._hold(self._document, asked, response)
        now = self._document.current
        return now.unchanged(request) if now is asked else now.changed(request)

    async def health(self, header: Header) -> DocumentResponse:
        return _NOT_REGISTERED if self._document is None else self._document.current.health()

    async def live(self, header: Header) -> DocumentResponse:
        return DocumentResponse(200, body=b'{"status": "live"}')

    async def _hold(self, document: PublishedDocument, asked: Revision, hold: Hold) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        unsubscribe = document.subscribe(lambda: loop.call_soon_threadsafe(changed.set))
        self.held += 1
        try:
            with anyio.move_on_after(hold.seconds):
                while document.current is asked:
                    await changed.wait()
        finally:
            self.held -= 1
            unsubscribe()

    def _is_authorized(self, header: Header) -> bool:
        if self._authorization is None:
            return True
        given = (header("Authorization") or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._authorization)  # `==` would leak the token by its timing
