"""Faults between a server and its client: handlers in front of the real one, and the script that uses them."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.kubernetes.fake import faults
from tests.kubernetes.fake.calls import (
    Answer,
    Call,
    CutError,
    Handler,
    StatusError,
    expired,
    json_line,
    once,
    too_large,
)

Fault: TypeAlias = Callable[[Call, Handler], Awaitable[Answer]]

Pipe: TypeAlias = Callable[[AsyncGenerator[bytes, None]], AsyncGenerator[bytes, None]]

Verb: TypeAlias = Literal["list", "watch", "get", "any"]

HTML = b"<!DOCTYPE html>\n<html><body><h1>502 Bad Gateway</h1></body></html>\n"


@dataclass(slots=True)
class _Entry:
    fault: Fault
    verb: Verb
    resource: str
    left: int | None


class FaultScript:
    """Which calls fail, and how. Entries are used in the order in which they were added."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add(
        self, fault: Fault, *, on: Verb = "any", times: int | None = 1, resource: str = "endpointslices"
    ) -> None:
        """The next `times` calls of that verb; None: all of them, until `clear`."""
        self._entries.append(_Entry(fault, on, resource, times))

    def clear(self) -> None:
        self._entries.clear()

    @property
    def pending(self) -> int:
        """Entries that are not used up."""
        return len(self._entries)

    def take(self, call: Call) -> Fault | None:
        for entry in self._entries:
            if entry.verb in ("any", call.verb) and entry.resource == call.resource:
                if entry.left is not None:
                    entry.left -= 1
                    if entry.left <= 0:
                        self._entries.remove(entry)
                return entry.fault
        return None


def refuses(error: StatusError) -> Fault:
    """An HTTP status with a Status body."""
    return answers(error.code, json_line(error.status), **error.headers)


def html(code: int) -> Fault:
    """A proxy or a login page answers instead of the API server."""
    return answers(code, HTML, **{"Content-Type": "text/html"})


def answers(code: int, body: bytes, **headers: str) -> Fault:
    async def fault(call: Call, serve: Handler) -> Answer:
        return Answer(code, once(body), {"Content-Type": "application/json"} | headers)

    return fault


def sends(*lines: bytes, stay: bool = False) -> Fault:
    """200, these bytes, and a clean end; with `stay` silence instead of the end."""

    async def body() -> AsyncGenerator[bytes, None]:
        for line in lines:
            yield line
        if stay:
            await asyncio.Event().wait()

    async def fault(call: Call, serve: Handler) -> Answer:
        return Answer(200, body())

    return fault


def in_stream(error: StatusError) -> Fault:
    """200, an ERROR event, and a clean end."""
    return sends(error.event())


async def healthy(call: Call, serve: Handler) -> Answer:
    """No fault: the script goes on with the call after this one."""
    return await serve(call)


def after_calling(happens: Callable[[], object]) -> Fault:
    """Calls `happens` just before the server answers."""

    async def fault(call: Call, serve: Handler) -> Answer:
        happens()
        return await serve(call)

    return fault


def if_watch_list(fault: Fault) -> Fault:
    """Only for those who ask for initial events."""

    async def maybe(call: Call, serve: Handler) -> Answer:
        return await (fault(call, serve) if "sendInitialEvents" in call.params else serve(call))

    return maybe


async def no_answer(call: Call, serve: Handler) -> Answer:
    """The connection is open, and the headers never arrive."""
    await asyncio.Event().wait()
    raise AssertionError


async def broken_before_headers(call: Call, serve: Handler) -> Answer:
    raise CutError


def body_through(pipe: Pipe, **headers: str) -> Fault:
    """The real answer, its bytes led through `pipe`."""

    async def led(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(body), aclosing(pipe(body)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def fault(call: Call, serve: Handler) -> Answer:
        answer = await serve(call)
        answer.body = led(answer.body)
        answer.headers |= headers
        return answer

    return fault


def preceded(*lines: bytes) -> Fault:
    """The real answer after these bytes."""

    async def pipe(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        for line in lines:
            yield line
        async for chunk in body:
            yield chunk

    return body_through(pipe)


def cut(
    *, after: int = 0, inside: float | None = 0.5, how: Literal["reset", "fin", "end"] = "reset"
) -> Fault:
    """`after` whole chunks pass, then `inside` (a share) of the next one, then the connection ends: by RST, by FIN
    without the end of the body, or by the clean end of the body. `inside` None: nothing more, and at once.
    """

    async def pipe(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        passed = 0
        if after == 0 and inside is None:
            return
        async for chunk in body:
            if passed < after:
                yield chunk
                passed += 1
                if passed < after or inside is not None:
                    continue
            if inside is not None:
                yield chunk[: max(1, int(len(chunk) * inside))]
            break
        if how != "end":
            raise CutError(reset=how == "reset")

    return body_through(pipe)


def drip(size: int) -> Fault:
    """The same bytes, `size` at a time."""

    async def pipe(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for chunk in body:
            for i in range(0, len(chunk), size):
                yield chunk[i : i + size]
                await asyncio.sleep(0)

    return body_through(pipe)


def mapped(change: Callable[[bytes], bytes | None]) -> Fault:
    """Each chunk (a list's body, a watch's line) replaced; None: it is lost."""

    async def pipe(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for chunk in body:
            if (changed := change(chunk)) is not None:
                yield changed

    return body_through(pipe)


def gzipped() -> Fault:
    """Compressed without being asked, one gzip member for each flush."""
    return body_through(gzip_members, **{"Content-Encoding": "gzip"})


async def gzip_members(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """One gzip member for each flush, as WatchListCompression (on since 1.37) writes them."""
    async for chunk in body:
        yield gzip.compress(chunk)


def other_server(other: Handler) -> Fault:
    """Another server behind the same load balancer answers."""

    async def fault(call: Call, serve: Handler) -> Answer:
        return await other(call)

    return fault


_BUSY = StatusError(429, "TooManyRequests", "busy", retry_after=1)

_INTERNAL = StatusError(500, "InternalError", "leader changed")

_CUTS = [
    *(faults.cut(after=n, inside=0.5, how="reset") for n in (0, 1)),
    *(faults.cut(after=n, inside=None, how="fin") for n in (0, 1)),
]

FAULTS: list[tuple[Fault, Verb]] = [
    *((cut, "any") for cut in _CUTS),
    (faults.cut(inside=0.5, how="end"), "any"),
    (faults.cut(inside=None, how="end"), "watch"),
    (faults.broken_before_headers, "any"),
    (faults.no_answer, "any"),
    (faults.html(200), "any"),
    (faults.html(503), "any"),
    (faults.refuses(_BUSY), "any"),
    (faults.in_stream(_BUSY), "watch"),
    (faults.refuses(_INTERNAL), "any"),
    (faults.in_stream(_INTERNAL), "watch"),
    (faults.refuses(expired("too old")), "any"),
    (faults.in_stream(expired("too old")), "watch"),
    (faults.refuses(too_large(9999, 1)), "any"),
    (faults.in_stream(too_large(9999, 1)), "watch"),
    (faults.refuses(StatusError(403, "Forbidden", "no")), "any"),
    (faults.sends(b'{"type":"MODIFIED","object":{}}\n'), "watch"),
    (faults.preceded(b"{]\n"), "watch"),
    (faults.drip(50), "any"),
]
