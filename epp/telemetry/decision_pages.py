"""Serves the last decisions, GET /debug/decisions, and what the picker would do with a request, POST /debug/explain."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from epp.decisions.query import DecisionReader, parse_query
from epp.request.rejection import UnreadableError
from epp.request.subset import Subset
from epp.scheduling.decision import Decision
from epp.telemetry.pages import SEND_TIMEOUT, send_page

DECISIONS_PATH: Final = "/debug/decisions"


class _Numbered(msgspec.Struct):
    sequence: int


class DecisionsOfOther(msgspec.Struct):
    """The answer of another process of this picker."""

    last: int
    decisions: list[msgspec.Raw]


AskOthers = Callable[[str], Awaitable[list[DecisionsOfOther]]]
"""Given the query of a URL."""


_OFF: Final = "decisions are not recorded; start the picker without --decisions 0"


class DecisionPages:
    """`send_timeout`: seconds for a client to read an answer. `others`: asks the other processes of this picker the same."""

    def __init__(
        self, reader: DecisionReader, send_timeout: float = SEND_TIMEOUT, others: AskOthers | None = None
    ) -> None:
        self._reader = reader
        self._send_timeout = send_timeout
        self._others = others
        self._one_at_a_time = asyncio.Lock()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(DECISIONS_PATH, self._decisions)

    async def _decisions(self, request: web.Request) -> web.StreamResponse:
        reader = self._reader
        if not reader.ring.most:
            return problem(404, _OFF)
        try:
            query = parse_query(request.query)
        except ValueError as error:
            return problem(400, str(error))
        now = None if reader.ring.sequences is None else reader.ring.sequences()
        answers = [] if self._others is None else await self._others(request.query_string)
        async with self._one_at_a_time:  # however many ask, the loop and memory are spent on one answer
            found, clock = list[tuple[int, bytes]](), asyncio.get_running_loop().time
            began = clock()
            for document in reader.read(query):
                found.append((document["sequence"], msgspec.json.encode(document)))
                await asyncio.sleep(clock() - began)  # picks get at least half of the loop's time
                began = clock()
        last = reader.ring.last
        for answer in answers:
            last = max(last, answer.last)
            found += [(_sequence(one), bytes(one)) for one in answer.decisions]
        if now is not None and self._others is not None:
            # what came later to one process may have come before what another one has not told yet
            last, found = min(last, now), sorted(one for one in found if one[0] <= now)
        parts = [part for _, part in (found[-query.limit :] if query.after is None else found[: query.limit])]
        head = msgspec.json.encode({"capacity": reader.ring.most, "last": last})
        body = head[:-1] + b',"decisions":[' + b",".join(parts) + b"]}\n"
        return await send_page(request, body, "application/json", self._send_timeout)


def _sequence(decision: msgspec.Raw) -> int:
    return msgspec.json.decode(decision, type=_Numbered).sequence


def problem(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode({"error": text}) + b"\n", content_type="application/json"
    )


EXPLAIN_PATH: Final = "/debug/explain"
MAX_BYTES: Final = 4 * 1024 * 1024
"""The size of a request that is explained: it is read on the loop that picks."""
_MOST_HEADERS: Final = 200
_MOST_WAITING: Final = 16
"""Explanations that wait for their turn."""
_SHARE: Final = 0.1
"""Explanations take this share of the loop's time at most."""
_TIMEOUT: Final = 10.0
"""Seconds to send the request."""
_EXPECTED: Final = 'expected {"path": "/v1/chat/completions", "headers": {...}, "body": {...}}, all optional; see docs/decisions.md'

Explain = Callable[[Mapping[str, str], bytes | None, Subset | None], Decision]


class ExplainedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`body`: a JSON value, taken as it is written, or a string: the text of a body. `subset`: as the data plane's."""

    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = {}
    body: msgspec.Raw = msgspec.Raw()
    subset: list[str] | None = None


@dataclass(frozen=True, slots=True)
class _ParsedRequest:
    headers: Mapping[str, str]
    body: bytes
    subset: Subset | None


class ExplainPage:
    def __init__(self, explain: Explain, reader: DecisionReader) -> None:
        self._explain = explain
        self._reader = reader
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._free_at = 0.0

    def add_to(self, app: web.Application) -> None:
        app.router.add_post(EXPLAIN_PATH, self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        if self._waiting >= _MOST_WAITING:
            return problem(429, "too many requests wait to be explained; try again later")
        self._waiting += 1
        try:
            candidates = _candidates(request.query)
            document = await _read(request)
            async with self._turn:
                await asyncio.sleep(self._free_at - asyncio.get_running_loop().time())
                return self._explained(document, candidates)
        except ValueError as error:
            return problem(400, str(error))
        except TimeoutError:
            return problem(408, f"the request did not come within {_TIMEOUT:g} s")
        except web.HTTPRequestEntityTooLarge:
            return problem(413, f"the request is longer than {MAX_BYTES} bytes")
        finally:
            self._waiting -= 1

    def _explained(self, document: bytes, candidates: int) -> web.Response:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            asked = parse_explained(document)
            decision = self._explain(asked.headers, asked.body, asked.subset)
            body = msgspec.json.encode(self._reader.describe(decision, candidates)) + b"\n"
        finally:
            ended = clock()
            self._free_at = ended + (ended - began) * (1.0 / _SHARE - 1.0)
        return web.Response(body=body, content_type="application/json")


def parse_explained(document: bytes) -> _ParsedRequest:
    """The request as the data plane would bring it; ValueError says what is expected."""
    try:
        given = msgspec.json.decode(document, type=ExplainedRequest)
        body = bytes(given.body)
        if body[:1] == b'"':
            body = msgspec.json.decode(body, type=str).encode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"the request is not one to explain: {error}; {_EXPECTED}") from None
    if len(given.headers) > _MOST_HEADERS:
        raise ValueError(f"the request has more than {_MOST_HEADERS} headers")
    headers = {name.strip().lower(): value for name, value in given.headers.items()}
    headers = {":method": given.method.upper(), ":path": given.path, **headers}
    try:
        subset = None if given.subset is None else Subset.of(given.subset)
    except UnreadableError as error:
        raise ValueError(f"subset: {error}") from None
    return _ParsedRequest(headers, body, subset)


def _candidates(query: Mapping[str, str]) -> int:
    """How many endpoints of each profile are shown; raises ValueError for other parameters."""
    unknown = [name for name in query if name != "candidates"]
    if unknown:
        raise ValueError("the only parameter is candidates")
    return parse_query({"limit": "1", **query}).candidates


async def _read(request: web.Request) -> bytes:
    body = bytearray()
    async with asyncio.timeout(_TIMEOUT):
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MAX_BYTES:
                raise web.HTTPRequestEntityTooLarge(MAX_BYTES, len(body))
    return bytes(body)
