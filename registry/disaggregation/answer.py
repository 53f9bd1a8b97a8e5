"""One answer on its way to the client: head and bytes as the decode worker sends them, at the client's pace."""

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Final, Protocol

from adsum.http1.connection import ClientConnection
from adsum.http1.relay import Framing
from adsum.http1.response import ChunkScanner
from registry.disaggregation.cached_tokens import EventRewriter, rewritten
from registry.disaggregation.connectors import CACHE_THRESHOLD, finish_reason, first_finish_reason

_MOST_DOCUMENT: Final = 16 * 1024 * 1024
"""Bytes of an answer that is held until its end to change its `usage`; a larger one passes as it is."""
_MOST_EVENTS: Final = 64 * 1024
"""Bytes of a stream that are held until it says whether it goes on."""
_HOP_BY_HOP: Final = (b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"te")
_FRAMING: Final = (b"content-length", b"transfer-encoding", b"trailer")
_RESET: Final = struct.pack("ii", 1, 0)
"""A close does not wait for what was not sent (socket(7))."""
_REASONS: Final = {one.value: one.phrase.encode() for one in HTTPStatus}


class Client(Protocol):
    """The connection to the client."""

    transport: asyncio.Transport | None

    def relay_from(self, worker: ClientConnection | None) -> None:
        """Read from this worker no faster than the client reads; None: the answer has ended."""


class Answer:
    """A `ResponseReceiver`. `close`: the client's connection ends with this answer. `client` None: it is read, and nobody gets it.

    `cached_tokens`: what `usage` has to say instead; None: every byte passes. `fields`: header fields of ours.
    """

    def __init__(self, client: Client | None, *, close: bool, can_chunk: bool) -> None:
        self.close = close
        self.fields = b""
        self.cached_tokens: int | None = None
        self.begun = False
        """Whether the client has got any of it."""
        self.has_body = False
        """Whether the worker has sent any of its body: the first token, of a stream."""
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once `has_body`."""
        self._client = client
        self._can_chunk = can_chunk
        self._pending = b""
        self._head: tuple[int, bytes] = (0, b"")
        self._events: EventRewriter | None = None
        self._document: bytearray | None = None
        self._scanner: ChunkScanner | None = None
        self._payload: list[bytes] = []  # bounded: what was received at once
        self._framed = True

    def over(self, worker: ClientConnection) -> None:
        """The answer comes over this connection."""
        if self._client is not None:
            self._client.relay_from(worker)

    def leave(self) -> None:
        """The client has gone: what still comes is dropped."""
        if self._client is not None:
            self._client.relay_from(None)
        self._client = None

    def begin(self, status: int, fields: bytes, framing: Framing) -> None:
        self._head = (status, fields)
        self._framed = framing.chunked or framing.length is not None
        kind = None if self.cached_tokens is None or status != 200 else _rewritable(fields)
        if kind is None or self.cached_tokens is None:
            self.close = self.close or not self._framed
            self._pending = self._head_bytes(status, _kept(fields, _HOP_BY_HOP))
            return
        self._scanner = ChunkScanner(self._payload) if framing.chunked else None
        if kind == "events":
            self._events = EventRewriter(self.cached_tokens)
            self._begin_rewritten()
        else:
            self._document = bytearray()

    def receive(self, data: bytes) -> None:
        if data and not self.has_body:
            self.has_body = True
            self.taken.set_result(None)
        if self._events is not None:
            self._write(self._chunk(self._events.feed(self._content(data))))
        elif self._document is not None:
            self._document += self._content(data)
            if len(self._document) > _MOST_DOCUMENT:
                self._begin_rewritten()
                self._write(self._chunk(bytes(self._document)))
                self._document, self._events = None, EventRewriter(0)  # no line of it is an event
        else:
            self._write(data)

    def end(self) -> None:
        """The worker has sent all of it."""
        if self._document is not None and self.cached_tokens is not None:
            changed = rewritten(bytes(self._document), self.cached_tokens)
            status, fields = self._head
            own = b"content-length: %d\r\n" % len(changed)
            self._pending = self._head_bytes(status, _kept(fields, _HOP_BY_HOP + _FRAMING) + own)
            self._write(changed)
        elif self._events is not None:
            self._write(self._chunk(self._events.end()) + (b"0\r\n\r\n" if self._can_chunk else b""))
        else:
            self._write(b"")
        self.release()

    def release(self) -> None:
        """The worker has ended an answer that is not for the client; another one follows."""
        if self._client is not None:
            self._client.relay_from(None)

    def cut(self) -> None:
        """The worker ended before its answer did: so does the client's connection, and it must see that."""
        transport = None if self._client is None else self._client.transport
        self.leave()
        if transport is None:
            return
        if self._framed if self._events is None else self._can_chunk:
            transport.close()  # after what came: its end is missing
            return
        # an answer without a length ends with its connection: only a reset says that it broke
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    def _begin_rewritten(self) -> None:
        status, fields = self._head
        own = b"transfer-encoding: chunked\r\n" if self._can_chunk else b""
        self.close = self.close or not self._can_chunk
        self._pending = self._head_bytes(status, _kept(fields, _HOP_BY_HOP + _FRAMING) + own)

    def _head_bytes(self, status: int, fields: bytes) -> bytes:
        ending = b"connection: close\r\n\r\n" if self.close else b"\r\n"
        return b"HTTP/1.1 %d %s%s%s%s" % (status, _REASONS.get(status, b""), fields, self.fields, ending)

    def _content(self, data: bytes) -> bytes:
        """The data without the framing of chunks."""
        if self._scanner is None:
            return data
        self._payload.clear()
        self._scanner.feed(data)
        return b"".join(self._payload)

    def _chunk(self, content: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(content), content) if content and self._can_chunk else content

    def _write(self, data: bytes) -> None:
        client = self._client
        if client is None or client.transport is None or client.transport.is_closing():
            return
        if self._pending:
            data, self._pending = self._pending + data, b""
        if data:
            self.begun = True
            client.transport.write(data)


class Probe:
    """Holds an answer back until it says whether the decode worker had enough of the prompt (shared storage)."""

    def __init__(self, answer: Answer) -> None:
        self.refused = False
        """The decode worker had too little: the answer was none, and nothing of it went on."""
        self._answer = answer
        self._passes = False
        self._head: tuple[int, bytes, Framing] = (0, b"", Framing(chunked=False, length=0))
        self._held = bytearray()  # bounded: _MOST_DOCUMENT
        self._content = bytearray()  # bounded: _MOST_DOCUMENT
        self._is_stream = False
        self._scanner: ChunkScanner | None = None
        self._payload: list[bytes] = []  # bounded: what was received at once

    @property
    def begun(self) -> bool:
        return self._answer.begun

    def over(self, worker: ClientConnection) -> None:
        self._answer.over(worker)

    def begin(self, status: int, fields: bytes, framing: Framing) -> None:
        self._head = (status, fields, framing)
        kind = _rewritable(fields) if status == 200 else None
        self._is_stream = kind == "events"
        self._scanner = ChunkScanner(self._payload) if framing.chunked else None
        if kind is None:
            self._pass()

    def receive(self, data: bytes) -> None:
        if self._passes:
            self._answer.receive(data)
        elif not self.refused:
            self._hold(data)

    def end(self) -> None:
        if not self._passes and not self.refused:
            self._judge(finish_reason(bytes(self._content)) if not self._is_stream else "")
        if self._passes:
            self._answer.end()
        else:
            self._answer.release()

    def _hold(self, data: bytes) -> None:
        self._held += data
        if self._scanner is None:
            self._content += data
        else:
            self._payload.clear()
            self._scanner.feed(data)
            self._content += b"".join(self._payload)
        if self._is_stream:
            self._judge(first_finish_reason(bytes(self._content)))
        if len(self._held) > (_MOST_EVENTS if self._is_stream else _MOST_DOCUMENT) and not self.refused:
            self._pass()

    def _judge(self, reason: str | None) -> None:
        """`reason`: why the answer ended, "" if it goes on; None: it is not known yet."""
        if reason == CACHE_THRESHOLD:
            self.refused = True
        elif reason is not None and not self._passes:
            self._pass()

    def _pass(self) -> None:
        self._passes = True
        self._answer.begin(*self._head)
        self._answer.receive(bytes(self._held))
        self._held.clear()


def _rewritable(fields: bytes) -> str | None:
    lower = fields.lower()
    if b"\r\ncontent-encoding:" in lower:
        return None
    at = lower.find(b"\r\ncontent-type:")
    kind = b"" if at < 0 else lower[at : lower.index(b"\r\n", at + 2)]
    if b"text/event-stream" in kind:
        return "events"
    return "document" if b"application/json" in kind else None


def _kept(fields: bytes, without: tuple[bytes, ...]) -> bytes:
    """The fields without those of these names, and without what a Connection field names; unchanged if there is none."""
    lower = fields.lower()
    if not any(b"\r\n%s:" % name in lower for name in without):
        return fields
    # bounded: a head, at most 64 KiB
    lines = [line.partition(b":") for line in fields[2:-2].split(b"\r\n")]
    named = b",".join([value.lower() for name, _, value in lines if name.lower() == b"connection"])
    # bounded: a head, at most 64 KiB
    listed = {one.strip() for one in named.split(b",")}.difference(_FRAMING)  # the client needs them
    kept = [
        b"".join(line) for line in lines if line[0].lower() not in without and line[0].lower() not in listed
    ]
    return b"\r\n" + b"".join(b"%s\r\n" % line for line in kept)
