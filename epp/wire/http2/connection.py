"""The server's side of one HTTP/2 connection (RFC 9113), without I/O: bytes in, bytes out, requests to `accept`. Pure."""

from collections.abc import Callable
from typing import Final

from epp.request.body import MemoryBudget
from epp.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    LEAST_FRAME_SIZE,
    LONG_FRAME,
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
    DataRun,
    Http2ErrorCode,
    check_frame_size,
    frame,
    goaway,
    parse_settings,
    settings,
    window_update,
)
from epp.wire.http2.incoming import Accept, Incoming, strip_priority
from epp.wire.http2.limits import Limits
from epp.wire.http2.outgoing import Outgoing
from epp.wire.http2.streams import Streams, StreamState

_COPY_LIMIT: Final = 64 * 1024
"""Reads of up to so many bytes are copied as a whole: to slice each frame out of a memoryview costs more."""
_DRAIN_PING: Final = b"\0leaving"
"""The PING whose answer says that the peer has read the first GOAWAY."""


class Connection:
    """Pass what is read to `receive`, write what `data_to_send` returns, call `abort` when the peer is gone.

    `accept` is called for each request. `memory` bounds the unfinished messages and unsent answers of all connections
    together. `wake` is called when there are bytes to send outside a call of `receive`.
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
        self._limits = limits
        self._clock = clock
        self.outgoing = Outgoing(self.streams, memory, wake)
        self._incoming = Incoming(accept, self.streams, self.outgoing, limits, clock)
        self._preface_received = False
        self.unparsed = b""
        """The beginning of an incomplete frame. A caller that prepends it to the next read sets it to b"" first."""
        self.settings_received = False
        self._draining = False
        self.goaway_received = False
        self.failed: str | None = None
        """Why the connection failed; None while it has not."""
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            HEADERS: self._incoming.headers,
            PRIORITY: self._on_priority,
            RST_STREAM: self._on_rst_stream,
            SETTINGS: self._on_settings,
            PUSH_PROMISE: self._on_push_promise,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            WINDOW_UPDATE: self._on_window_update,
            CONTINUATION: self._incoming.continuation,
        }
        self._offer(limits)

    def _offer(self, limits: Limits) -> None:
        """Write our preface, before any other frame (RFC 9113 3.4)."""
        self.outgoing.corked = True
        offered = {
            MAX_CONCURRENT_STREAMS: limits.offered or limits.streams,
            INITIAL_WINDOW_SIZE: limits.stream_window,
            MAX_HEADER_LIST_SIZE: limits.header_list,
        }
        self.outgoing.write(settings(offered))
        # SETTINGS change the windows of streams only, never the connection's (RFC 9113 6.9.2)
        if limits.connection_window > DEFAULT_WINDOW:
            self.outgoing.write(window_update(0, limits.connection_window - DEFAULT_WINDOW))
        self.outgoing.corked = False

    @property
    def can_close(self) -> bool:
        """Whether the connection can be closed: it failed, or one side sent GOAWAY and every stream is answered."""
        if self.failed is not None:
            return True
        return (self._incoming.refusing or self.goaway_received) and not self.streams.unanswered

    @property
    def idle(self) -> bool:
        """Whether nothing is asked of us."""
        return len(self.streams.open) == len(self.streams.silent)

    def end_silent_streams(self) -> None:
        """Reset streams that have been silent for too long."""
        opened_before = self._clock() - self._limits.silence
        for stream in list(self.streams.silent.values()):
            if stream.opened_at > opened_before:
                return
            answered = stream.half_closed_local
            self.outgoing.reset(stream, Http2ErrorCode.NO_ERROR if answered else Http2ErrorCode.CANCEL)
            if not answered:
                stream.receiver.lost("no message came")

    def receive(self, data: bytes | memoryview) -> None:
        """Process bytes from the peer, split at any point. After a fault of the peer `data_to_send` returns a GOAWAY.

        No reference to a memoryview is kept. A long one is not copied while `unparsed` is empty.
        """
        if self.failed is not None:
            return
        outgoing = self.outgoing
        outgoing.corked = True
        try:
            self._receive_frames(data)
            self._flush()
        except BrokenConnectionError as fault:
            self.fail(fault.code, str(fault))
        finally:
            outgoing.corked = False

    def data_to_send(self) -> bytes:
        """The bytes to write now. Empty: there are none until something is read or the peer reads."""
        written = self.outgoing.data_to_send()
        if self.outgoing.waiting:
            self.outgoing.corked = True
            self._flush()
            self.outgoing.corked = False
        return written

    def set_blocked(self, blocked: bool) -> None:
        """Tell whether the peer has stopped reading."""
        self.outgoing.blocked = blocked
        if not blocked and self.failed is None:
            self._flush()

    def abort(self, cause: str) -> None:
        """End all streams without a word: the peer is gone."""
        self.failed = self.failed or cause
        for stream in list(self.streams.open.values()):
            self.outgoing.discard(stream)
            self.streams.close(stream, by_peer=True)
            if not stream.half_closed_local:
                stream.receiver.lost(cause)

    def fail(self, code: Http2ErrorCode, reason: str) -> None:
        """Send GOAWAY with the reason and end all streams."""
        self.outgoing.write(goaway(self.streams.last, code, reason))
        self.abort(reason)

    def drain(self) -> None:
        """Send a first GOAWAY, which refuses no stream yet, and a PING (RFC 9113 6.8).

        Streams that the peer opened before it read the GOAWAY are served. Its answer to the PING triggers `refuse_streams`.
        """
        if not self._draining:
            self._draining = True
            self.outgoing.write(
                goaway(LARGEST_WINDOW, Http2ErrorCode.NO_ERROR) + frame(PING, 0, 0, _DRAIN_PING)
            )

    def refuse_streams(self) -> None:
        """Refuse new streams from now on."""
        self._draining = True
        if not self._incoming.refusing:
            self._incoming.refusing = True
            self.outgoing.write(goaway(self.streams.last, Http2ErrorCode.NO_ERROR))

    def close(self) -> None:
        """Refuse new streams and end the open ones."""
        self.refuse_streams()
        for stream in list(self.streams.open.values()):
            if not stream.half_closed_local:
                stream.receiver.close()

    def _flush(self) -> None:
        """Send what waits for window, then return window to streams whose peer has read."""
        self.outgoing.flush()
        self._incoming.update_windows()

    def _receive_frames(self, data: bytes | memoryview) -> None:
        if self.unparsed:
            data = self.unparsed + data
            self.unparsed = b""
        copy = bytes(data) if len(data) <= _COPY_LIMIT else None
        at, end = self._read_preface(data), len(data)
        incoming = self._incoming
        while end - at >= FRAME_HEADER_SIZE:
            high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data, at)
            start = at + FRAME_HEADER_SIZE
            stop = start + (high << 8 | low)
            if stop > end or stop - start > LEAST_FRAME_SIZE:
                check_frame_size(stop - start)
                break
            at = stop
            try:
                if kind == DATA and stop - start >= LONG_FRAME and incoming.accepts_run(flags, stream_id):
                    at = incoming.data_run(DataRun(data, start - FRAME_HEADER_SIZE))
                    continue
                payload = bytes(data[start:stop]) if copy is None else copy[start:stop]
                if kind > HEADERS or not self.settings_received or incoming.expects_continuation:
                    self._dispatch(kind, flags, stream_id & STREAM_ID, payload)
                else:
                    receive = incoming.data if kind == DATA else incoming.headers
                    receive(flags, stream_id & STREAM_ID, payload)
            except BrokenStreamError as fault:
                incoming.stream_error(fault)
        if at < end:
            self.unparsed = bytes(data[at:])

    def _read_preface(self, data: bytes | memoryview) -> int:
        """The offset of the first frame; the end of `data` while the preface is incomplete."""
        if self._preface_received:
            return 0
        begin = bytes(data[: len(PREFACE)])
        if not PREFACE.startswith(begin):
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
        if len(begin) < len(PREFACE):
            self.unparsed = begin
            return len(begin)
        self._preface_received = True
        return len(PREFACE)

    def _dispatch(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._incoming.expects_continuation and kind != CONTINUATION:
            raise BrokenConnectionError(
                Http2ErrorCode.PROTOCOL_ERROR, "a frame inside a header block (RFC 9113 6.10)"
            )
        if not self.settings_received:
            if kind != SETTINGS or flags & ACK:
                raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            self.settings_received = True
        handler = self._handlers.get(kind)
        if handler is None:
            self._incoming.count_overhead_frame()  # frames of unknown types are ignored (RFC 9113 5.5)
        else:
            handler(flags, stream_id, payload)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK and payload:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS ACK with a payload")
        self._incoming.count_overhead_frame()
        if flags & ACK:
            return
        # in order (RFC 9113 6.5.3): the last value of each setting holds
        last_values = dict(parse_settings(payload))
        for name, value in last_values.items():
            if name == INITIAL_WINDOW_SIZE:
                self.outgoing.set_initial_window(value)
            elif name == MAX_FRAME_SIZE:
                self.outgoing.frame_size = value
        self.outgoing.write(SETTINGS_ACK)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a PING on a stream")
        if len(payload) != 8:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a PING is 8 bytes")
        self._incoming.count_overhead_frame()
        if not flags & ACK:
            self.outgoing.write(frame(PING, ACK, 0, payload))
        elif payload == _DRAIN_PING and self._draining:
            self.refuse_streams()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a GOAWAY on a stream")
        if len(payload) < 8:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY is 8 bytes at least")
        self._incoming.count_overhead_frame()
        self.goaway_received = True

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE is 4 bytes")
        self._incoming.count_overhead_frame()
        increment = int.from_bytes(payload, "big") & STREAM_ID
        stream = self.streams.open.get(stream_id)
        if stream is None and stream_id and self.streams.state(stream_id) is StreamState.IDLE:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE on an idle stream")
        if increment == 0:  # RFC 9113 6.9
            fault = "a WINDOW_UPDATE of 0"
            if stream_id == 0:
                raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, fault)
            raise BrokenStreamError(stream_id, Http2ErrorCode.PROTOCOL_ERROR, fault)
        if stream is not None or stream_id == 0:
            self.outgoing.increment_window(stream, increment)

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._incoming.reset(stream_id, payload)

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a PRIORITY without a stream")
        if len(payload) != 5:
            raise BrokenStreamError(stream_id, Http2ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY is 5 bytes")
        self._incoming.count_overhead_frame()
        strip_priority(stream_id, payload)

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        # RFC 9113 8.4
        raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a client cannot push")
