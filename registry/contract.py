"""The worker's wire contract: who may ask, how many GETs are held. `server` and `asgi` only translate."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import anyio

from discovery.errors import RegistrationError
from discovery.instance import HEALTH_PATH, LIVE_PATH, METADATA_PATH, InstanceStatus
from registry.document import LONGEST_WAIT, DocumentAnswer, Hold, PublishedDocument, Question, Revision

Header: TypeAlias = Callable[[str], str | None]
"""A request's header field by name, several lines joined by commas; None without it."""

MAX_HELD: Final = 2048

_NOT_REGISTERED: Final = DocumentAnswer(503, body=b'{"error": "this worker is not registered yet"}')
_WANTS_TOKEN: Final = DocumentAnswer(
    401,
    {"Content-Type": "application/json", "WWW-Authenticate": 'Bearer realm="adsum"'},
    b'{"error": "this needs the bearer token that the worker was given"}',
)


class Contract:
    """What a worker answers to `/metadata`, `/health` and `/live`.

    Mount it in the worker's own application (`server.add_routes`, `asgi.ContractApp`) and hand it to `registry.open`;
    until an instance is registered with it, it answers 503. With a `token`, `/metadata` needs it as a bearer token;
    the probes stay open. At most `max_held` GETs are held, each for `max_wait` seconds; others are answered at once.
    """

    def __init__(
        self, *, token: str | None = None, max_held: int = MAX_HELD, max_wait: float = LONGEST_WAIT
    ) -> None:
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._max_held = max_held
        self._held = 0
        self._max_wait = max_wait
        self._document: PublishedDocument | None = None
        self._bound = False

    @property
    def routes(self) -> Mapping[str, Callable[[Header], Awaitable[DocumentAnswer]]]:
        """What answers a GET or HEAD of each path."""
        return MappingProxyType(
            {METADATA_PATH: self.metadata, HEALTH_PATH: self.health, LIVE_PATH: self.live}
        )

    @property
    def held(self) -> int:
        """How many GETs are held now."""
        return self._held

    def bind(self, document: PublishedDocument) -> None:
        """Answer for this instance. RegistrationError while another one is registered with this contract."""
        if self._bound and self._document is not None:
            raise RegistrationError(
                f"this contract already answers for instance {self._document.current.instance_id!r}: "
                "mount another one, or leave it out to have each instance served on its own port"
            )
        self._document, self._bound = document, True

    def unbind(self) -> None:
        """The instance left: answer as one that drains, until another one is bound."""
        if self._document is not None:
            self._document.set_status(InstanceStatus.DRAINING)
        self._bound = False

    async def metadata(self, header: Header) -> DocumentAnswer:
        if not self._may_ask(header):
            return _WANTS_TOKEN
        if self._document is None:
            return _NOT_REGISTERED
        question = Question.of(header("If-None-Match"), header("Prefer"), longest=self._max_wait)
        asked = self._document.current
        answer = asked.respond(question, may_hold=self._held < self._max_held)
        if isinstance(answer, DocumentAnswer):
            return answer
        await self._hold(self._document, asked, answer)
        now = self._document.current
        return now.unchanged(question) if now is asked else now.changed(question)

    async def health(self, header: Header) -> DocumentAnswer:
        return _NOT_REGISTERED if self._document is None else self._document.current.health()

    async def live(self, header: Header) -> DocumentAnswer:
        return DocumentAnswer(200, body=b'{"status": "live"}')

    async def _hold(self, document: PublishedDocument, asked: Revision, hold: Hold) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        stop = document.listen(lambda: loop.call_soon_threadsafe(changed.set))
        self._held += 1
        try:
            with anyio.move_on_after(hold.seconds):
                while document.current is asked:
                    await changed.wait()
        finally:
            self._held -= 1
            stop()

    def _may_ask(self, header: Header) -> bool:
        if self._authorization is None:
            return True
        given = (header("Authorization") or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._authorization)
