"""Shows the metrics port to clients whose bearer token the API server accepts, as the Go picker does.

That is the filter WithAuthenticationAndAuthorization of controller-runtime: a TokenReview says whose the token is, a
SubjectAccessReview whether that user may get the path. What the API server does not allow is refused, whatever the cause.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from adsum.quoting import quoted
from adsum.web.access import ADMITTED
from epp.kubernetes.access_review import ApiUser, ReviewError

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/healthz"})
"""Probes have no token."""
ALLOWED_FOR: Final = 60.0
"""Seconds for which an accepted token is not reviewed again: as long as the Go picker's."""
REFUSED_FOR: Final = 10.0
"""The same for one that was refused: a right that was just granted counts soon."""
CACHED: Final = 1024
"""Verdicts of one kind that are kept, of some hundred bytes each: refused tokens displace no accepted one."""
AT_ONCE: Final = 4
"""Reviews at the same time, of tokens that were accepted before, and of others; more wait."""
AT_ONCE_OF_PEER: Final = 2
"""Of one address, of tokens that were not accepted before: it cannot keep others from being asked about."""
STRANGE_TOKENS: Final = 10
"""So many such tokens of one address are reviewed at once, and one more each second: each costs the API server a request."""
_PEERS: Final = 1024
REVIEW_TIMEOUT: Final = 10.0
_LOG_EVERY: Final = 60.0
_LONGEST_TOKEN: Final = 16 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Reviewer(Protocol):
    """Asks the API server; both methods raise ReviewError."""

    async def user(self, token: str) -> ApiUser | None: ...

    async def may(self, user: ApiUser, verb: str, path: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Verdict:
    """`status`: 200 is allowed. `until`: seconds of the clock."""

    status: int
    reason: str
    until: float


@dataclass(slots=True)
class _Address:
    """`left`: how many strange tokens of it may be reviewed, as of `at`."""

    at: float
    left: float = STRANGE_TOKENS
    under_way: int = 0


class MetricsAuth:
    """`check` is a middleware of aiohttp. `clock` returns monotonic seconds."""

    def __init__(self, reviewer: Reviewer, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviewer = reviewer
        self._clock = clock
        self._allowed: dict[_Asked, _Verdict] = {}
        self._refused: dict[_Asked, _Verdict] = {}
        self._under_way: dict[_Asked, asyncio.Task[_Verdict]] = {}
        self._renewals = asyncio.Semaphore(AT_ONCE)
        self._first_reviews = asyncio.Semaphore(AT_ONCE)
        self._peers: dict[str, _Address] = {}
        self._logged_at = float("-inf")

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS or request.get(ADMITTED, False):
            return await handler(request)
        token = _bearer_token(request)
        if token is None:
            return _refusal(401, "a bearer token is required")
        verdict = await self._verdict(token, request.method.lower(), request.path, request.remote or "")
        return await handler(request) if verdict.status == 200 else _refusal(verdict.status, verdict.reason)

    async def _verdict(self, token: str, verb: str, path: str, address: str) -> _Verdict:
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()  # no token stays in memory
        asked = digest, verb, path
        if (known := self._known(asked)) is not None:
            return known
        task = self._under_way.get(asked)
        if task is None:
            peer = None if asked in self._allowed else self._peer(address)
            if peer is not None and not _may_ask(peer):
                return self._for(
                    0.0, 429, "too many tokens of this address are not accepted; try again in 1 s"
                )
            task = asyncio.create_task(self._ask(asked, token, peer))
            self._under_way[asked] = task
            task.add_done_callback(lambda _: self._under_way.pop(asked, None))
        return await asyncio.shield(task)  # a client that goes ends no review that others wait for

    async def _ask(self, asked: "_Asked", token: str, peer: _Address | None) -> _Verdict:
        if peer is not None:
            peer.under_way += 1
        try:
            async with self._renewals if peer is None else self._first_reviews:
                verdict = await self._review(token, *asked[1:])
        finally:
            if peer is not None:
                peer.under_way -= 1
        if verdict.status == 200:
            _keep(self._allowed, asked, verdict)
        elif verdict.status != 500:
            self._allowed.pop(asked, None)
            _keep(self._refused, asked, verdict)
        if peer is not None and verdict.status != 200:
            peer.left -= 1
        return verdict

    def _peer(self, address: str) -> _Address:
        """What may be asked for that address, as of now. The addresses that came first are forgotten."""
        now = self._clock()
        peer = self._peers.pop(address, None) or _Address(now)
        peer.left = min(STRANGE_TOKENS, peer.left + now - peer.at)
        peer.at = now
        if len(self._peers) >= _PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[address] = peer
        return peer

    def _known(self, asked: "_Asked") -> _Verdict | None:
        verdict = self._allowed.get(asked) or self._refused.get(asked)
        return verdict if verdict is not None and verdict.until > self._clock() else None

    async def _review(self, token: str, verb: str, path: str) -> _Verdict:
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT):
                user = await self._reviewer.user(token)
                if user is None:
                    return self._for(REFUSED_FOR, 401, "the token is not valid")
                if not await self._reviewer.may(user, verb, path):
                    rule = f"a ClusterRole with nonResourceURLs: [{path}], verbs: [{verb}]"
                    return self._for(
                        REFUSED_FOR, 403, f"{quoted(user.name, 253)} may not {verb} {path}; it needs {rule}"
                    )
        except (ReviewError, TimeoutError) as error:
            reason = str(error) or f"no answer of the API server within {REVIEW_TIMEOUT:g} s"
            self._log(reason)
            # bounded: the first line of our own error
            return self._for(0.0, 500, f"the token cannot be checked: {reason.splitlines()[0]}")
        return self._for(ALLOWED_FOR, 200, "")

    def _for(self, seconds: float, status: int, reason: str) -> _Verdict:
        return _Verdict(status, reason, self._clock() + seconds)

    def _log(self, reason: str) -> None:
        now = self._clock()
        if now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            log.warning("the metrics port answers 500, since no token can be checked: %s", reason)


_Asked = tuple[bytes, str, str]
"""The digest of a token, a verb and a path."""


def _may_ask(peer: _Address) -> bool:
    return peer.left >= 1 and peer.under_way < AT_ONCE_OF_PEER


def _keep(verdicts: dict[_Asked, _Verdict], asked: _Asked, verdict: _Verdict) -> None:
    verdicts.pop(asked, None)
    if len(verdicts) >= CACHED:
        del verdicts[next(iter(verdicts))]  # the oldest
    verdicts[asked] = verdict


def _bearer_token(request: web.Request) -> str | None:
    fields = request.headers.getall("Authorization", [])
    if len(fields) != 1:
        return None
    scheme, _, token = fields[0].strip().partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= _LONGEST_TOKEN else None


def _refusal(status: int, reason: str) -> web.Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(status, {})
    return web.Response(status=status, text=f"{reason}\n", headers=headers)
