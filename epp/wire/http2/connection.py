"""The server's side of one HTTP/2 connection (RFC 9113), without I/O: bytes in, bytes out, requests to `accept`. Pure."""

from collections.abc import Callable
from typing import Final

from epp.request.body import MemoryBudget
from epp.wire.http2.data_run import LONG, DataRun
from epp.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    GOAWAY,
    HEAD,
    HEAD_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    LEAST_FRAME_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_ID,
    WINDOW_UPDATE,
    BrokenConnectionError,
    BrokenStreamError,
    Http2ErrorCode,
    check_size,
    frame,
    goaway,
    parse_settings,
    settings,
    window_update,
)
from epp.wire.http2.incoming import Accept, Incoming, without_priority
from epp.wire.http2.limits import Limits
from epp.wire.http2.outgoing import Outgoing
from epp.wire.http2.streams import Fate, Streams

_SHORT: Final = 64 * 1024
"""Reads of up to so many bytes are copied as a whole: to slice each frame out of a memoryview costs more."""
_LEAVING: Final = b"\0leaving"
"""The PING whose answer says that the peer has read the first GOAWAY."""


class Connection:
    """Pass what is read to `receive`, write what `take` returns, call `lose` when the peer is gone.

    `accept` is called for each request. `memory` bounds the unfinished messages and unsent answers of all connections
    together. `wake` is called when bytes to `take` appear outside a call of `receive`.
    """

    def __init__(
        self,
        accept: Accept,
        limits: Limits,
        memory: MemoryBudget,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.streams = Streams()
        self.outgoing = Outgoing(self.streams, memory, wake)
        self._incoming = Incoming(accept, self.streams, self.outgoing, limits, clock)
        self._begun = False
        self.rest = b""
        """The beginning of an incomplete frame. A caller that prepends it to the next read sets it to b"" first."""
        self.greeted = False
        self._announced = False
        self.peer_drains = False
        self.failed: str | None = None
        """Why the connection failed; None while it has not."""
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            HEADERS: self._incoming.headers,
            PRIORITY: self._on_priority,
            RST_STREAM: self._on_reset,
            SETTINGS: self._on_settings,
            PUSH_PROMISE: self._on_push,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            WINDOW_UPDATE: self._on_window,
            CONTINUATION: self._incoming.continuation,
        }
        self.outgoing.busy = True
        offered = {
            MAX_CONCURRENT_STREAMS: limits.streams,
            INITIAL_WINDOW_SIZE: limits.stream_window,
            MAX_HEADER_LIST_SIZE: limits.header_list,
        }
        self.outgoing.write(settings(offered))
        if limits.connection_window > DEFAULT_WINDOW:
            self.outgoing.write(window_update(0, limits.connection_window - DEFAULT_WINDOW))
        self.outgoing.busy = False

    @property
    def over(self) -> bool:
        """Whether the connection can be closed: it failed, or one side sent GOAWAY and every stream is answered."""
        if self.failed is not None:
            return True
        return (self._incoming.refusing or self.peer_drains) and not self.streams.unanswered

    def receive(self, data: bytes | memoryview) -> None:
        """Process bytes from the peer, split at any point. A fault of the peer ends the connection; `take` then returns a GOAWAY.

        No reference to a memoryview is kept. A long one is not copied while `rest` is empty.
        """
        if self.failed is not None:
            return
        outgoing = self.outgoing
        outgoing.busy = True
        try:
            self._frames(data)
            self._advance()
        except BrokenConnectionError as fault:
            self.fail(fault.code, str(fault))
        finally:
            outgoing.busy = False

    def take(self) -> bytes:
        """The bytes to write now. Empty: there are none until something is read or the peer reads."""
        written = self.outgoing.take()
        if self.outgoing.waiting:
            self.outgoing.busy = True
            self._advance()
            self.outgoing.busy = False
        return written

    def block(self, blocked: bool) -> None:
        """Tell whether the peer has stopped reading."""
        self.outgoing.blocked = blocked
        if not blocked and self.failed is None:
            self._advance()

    def lose(self, cause: str) -> None:
        """End all streams without a word: the peer is gone."""
        self.failed = self.failed or cause
        for stream in list(self.streams.open.values()):
            self.outgoing.drop(stream)
            self.streams.close(stream, by_peer=True)
            if not stream.us_done:
                stream.receiver.lost(cause)

    def fail(self, code: Http2ErrorCode, reason: str) -> None:
        """Send GOAWAY with the reason and end all streams."""
        self.outgoing.write(goaway(self.streams.last, code, reason))
        self.lose(reason)

    def drain(self) -> None:
        """Send a first GOAWAY, which refuses no stream yet, and a PING (RFC 9113 6.8).

        Streams that the peer opened before it read the GOAWAY are served. Its answer to the PING triggers `refuse_streams`.
        """
        if not self._announced:
            self._announced = True
            self.outgoing.write(goaway(LARGEST_WINDOW, Http2ErrorCode.NO_ERROR) + frame(PING, 0, 0, _LEAVING))

    def refuse_streams(self) -> None:
        """Refuse new streams from now on."""
        self._announced = True
        if not self._incoming.refusing:
            self._incoming.refusing = True
            self.outgoing.write(goaway(self.streams.last, Http2ErrorCode.NO_ERROR))

    def close(self) -> None:
        """Refuse new streams and end the open ones."""
        self.refuse_streams()
        for stream in list(self.streams.open.values()):
            if not stream.us_done:
                stream.receiver.close()

    def _advance(self) -> None:
        """Send what waits for window, then return window to streams whose peer has read."""
        self.outgoing.flush()
        self._incoming.take_up()

    def _frames(self, data: bytes | memoryview) -> None:
        if self.rest:
            data = self.rest + data
            self.rest = b""
        whole = bytes(data) if len(data) <= _SHORT else None
        at, end = self._after_preface(data), len(data)
        incoming = self._incoming
        while end - at >= HEAD_SIZE:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, at)
            start = at + HEAD_SIZE
            stop = start + (high << 8 | low)
            if stop > end or stop - start > LEAST_FRAME_SIZE:
                check_size(stop - start)
                break
            at = stop
            try:
                if kind == DATA and stop - start >= LONG and incoming.continues(flags, stream_id):
                    at = incoming.data_run(DataRun(data, start - HEAD_SIZE))
                    continue
                payload = bytes(data[start:stop]) if whole is None else whole[start:stop]
                if kind > HEADERS or not self.greeted or incoming.expects_continuation:
                    self._other(kind, flags, stream_id & STREAM_ID, payload)
                else:
                    take = incoming.data if kind == DATA else incoming.headers
                    take(flags, stream_id & STREAM_ID, payload)
            except BrokenStreamError as fault:
                incoming.fault(fault)
        if at < end:
            self.rest = bytes(data[at:])

    def _after_preface(self, data: bytes | memoryview) -> int:
        """The offset of the first frame; the end of `data` while the preface is incomplete."""
        if self._begun:
            return 0
        begin = bytes(data[: len(PREFACE)])
        if not PREFACE.startswith(begin):
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
        if len(begin) < len(PREFACE):
            self.rest = begin
            return len(begin)
        self._begun = True
        return len(PREFACE)

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._incoming.expects_continuation and kind != CONTINUATION:
            raise BrokenConnectionError(
                Http2ErrorCode.PROTOCOL_ERROR, "a frame inside a header block (RFC 9113 6.10)"
            )
        if not self.greeted:
            if kind != SETTINGS or flags & ACK:
                raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            self.greeted = True
        handler = self._handlers.get(kind)
        if handler is None:
            self._incoming.idle_talk()  # frames of unknown types are ignored (RFC 9113 5.5)
        else:
            handler(flags, stream_id, payload)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK and payload:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS ACK says nothing else")
        self._incoming.idle_talk()
        if flags & ACK:
            return
        last_values = dict(
            parse_settings(payload)
        )  # in order (RFC 9113 6.5.3): the last value of each setting holds
        for name, value in last_values.items():
            if name == INITIAL_WINDOW_SIZE:
                self.outgoing.resize(value)
            elif name == MAX_FRAME_SIZE:
                self.outgoing.frame_size = value
        self.outgoing.write(SETTINGS_ACK)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a PING on a stream")
        if len(payload) != 8:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a PING is 8 bytes")
        self._incoming.idle_talk()
        if not flags & ACK:
            self.outgoing.write(frame(PING, ACK, 0, payload))
        elif payload == _LEAVING and self._announced:
            self.refuse_streams()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a GOAWAY on a stream")
        if len(payload) < 8:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY is 8 bytes at least")
        self._incoming.idle_talk()
        self.peer_drains = True

    def _on_window(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE is 4 bytes")
        self._incoming.idle_talk()
        increment = int.from_bytes(payload, "big") & STREAM_ID
        stream = self.streams.open.get(stream_id)
        if stream is None and stream_id and self.streams.fate(stream_id) is Fate.IDLE:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE on an idle stream")
        if increment == 0:
            fault = "a WINDOW_UPDATE of 0"
            if stream_id == 0:
                raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, fault)
            raise BrokenStreamError(stream_id, Http2ErrorCode.PROTOCOL_ERROR, fault)
        if stream is not None or stream_id == 0:
            self.outgoing.grow(stream, increment)

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._incoming.reset(stream_id, payload)

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a PRIORITY without a stream")
        if len(payload) != 5:
            raise BrokenStreamError(stream_id, Http2ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY is 5 bytes")
        self._incoming.idle_talk()
        without_priority(stream_id, payload)

    def _on_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a client cannot push")
