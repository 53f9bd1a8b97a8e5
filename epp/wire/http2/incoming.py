"""The receiving half of one HTTP/2 connection: HEADERS, CONTINUATION, DATA and RST_STREAM become calls of a Receiver. Pure."""

from collections.abc import Callable
from typing import Final

from epp.wire.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    WITH_PRIORITY,
    BrokenConnectionError,
    BrokenStreamError,
    DataRun,
    Http2ErrorCode,
    rst_stream,
    strip_padding,
    window_update,
)
from epp.wire.http2.header_blocks import HeaderBlocks, Http2Request, MalformedRequestError, check_trailers
from epp.wire.http2.limits import Limits, TokenBucket
from epp.wire.http2.outgoing import Outgoing
from epp.wire.http2.streams import Receiver, Stream, Streams, StreamState

_OVERHEAD_PER_DATA: Final = 4
"""Frames without payload, such as WINDOW_UPDATE, that a peer may send for each DATA frame."""

_RAPID: Final = 1.0
"""Seconds from HEADERS to RST_STREAM below which a reset is rapid. A request that waits or uploads for longer was not made to
be reset: its client has left, and through Envoy thousands of clients share a connection."""

Accept = Callable[[Outgoing, Stream, Http2Request], Receiver]
"""Called for each request; may send the whole answer before it returns."""


class Incoming:
    """`expects_continuation`: the stream whose header block is incomplete, or 0. `refusing`: new streams are refused."""

    def __init__(
        self, accept: Accept, streams: Streams, outgoing: Outgoing, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self._accept = accept
        self._streams = streams
        self._outgoing = outgoing
        self._limits = limits
        self._clock = clock
        self._blocks = HeaderBlocks(limits.header_list)
        self._overhead = TokenBucket(limits.overhead_frames, limits.overhead_frames_per_second, clock)
        self._resets = TokenBucket(limits.resets, limits.resets_per_second, clock)
        self._block: list[bytes] = []
        self._block_size = 0
        self._block_flags = 0
        self._unacknowledged = 0  # bytes received since the last WINDOW_UPDATE of the connection
        self._withheld: dict[int, Stream] = {}  # streams that get no window until their answer is read
        self.expects_continuation = 0
        self.refusing = False

    def count_overhead_frame(self) -> None:
        """Count a frame that carries no request; raises BrokenConnectionError when there are too many.

        Floods of such frames have taken servers down: CVE-2019-9512 (PING), -9514 (RST_STREAM), -9515 (SETTINGS),
        -9518 (empty frames), CVE-2024-27316 (CONTINUATION).
        """
        if not self._overhead.take():
            raise BrokenConnectionError(
                Http2ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry no request"
            )

    def headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """HEADERS (RFC 9113 6.2)."""
        if stream_id % 2 == 0:  # RFC 9113 5.1.1
            raise BrokenConnectionError(
                Http2ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that a client cannot open"
            )
        if flags & PADDED:
            payload = strip_padding(payload)
        if flags & WITH_PRIORITY:
            payload = strip_priority(stream_id, payload)
        if flags & END_HEADERS:
            self._header_block(stream_id, flags, payload)
            return
        self.expects_continuation = stream_id
        self._block_flags = flags
        self._block_size = 0
        self._add_fragment(payload)

    def continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        """CONTINUATION (RFC 9113 6.10)."""
        if stream_id != self.expects_continuation:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        self.count_overhead_frame()
        self._add_fragment(payload)
        if flags & END_HEADERS:
            block = b"".join(self._block)
            self._block = []
            self.expects_continuation = 0
            self._header_block(stream_id, self._block_flags, block)

    def data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """DATA (RFC 9113 6.1)."""
        length = len(payload)
        self._unacknowledged += length
        stream = self._streams.open.get(stream_id)
        if stream is None or stream.half_closed_remote:
            self._data_after_end(stream_id, stream)
            return
        stream.unacknowledged += length
        if flags & PADDED:
            payload = strip_padding(payload)
        if stream.body_left is not None:
            self._count_body(stream, len(payload))
        if payload:
            self._overhead.tokens += _OVERHEAD_PER_DATA
            stream.receiver.data(payload)
        if flags & END_STREAM:
            self._end_remote(stream)
        elif stream.unacknowledged * 2 > self._limits.stream_window:
            self._update_window(stream)
        elif not payload:
            self.count_overhead_frame()

    def accepts_run(self, flags: int, stream_id: int) -> bool:
        """Whether `data_run` may process a DATA frame together with the ones behind it."""
        stream = self._streams.open.get(stream_id)
        if stream is None or stream.half_closed_remote or stream.body_left is not None:
            return False
        return not flags & ~END_STREAM and not self.expects_continuation

    def data_run(self, run: DataRun) -> int:
        """Process several DATA frames as `data` would, after `accepts_run`; returns the offset of the next frame."""
        stream = self._streams.open[run.stream_id]
        self._unacknowledged += run.size
        stream.unacknowledged += run.size
        unread = iter(run.payloads)
        stream.receiver.data_run(unread)
        late = 0 if stream.id in self._streams.open else sum(1 for _ in unread)
        self._overhead.tokens += _OVERHEAD_PER_DATA * (len(run.payloads) - late)
        for _ in range(late):  # frames that arrived after we ended the stream
            self.count_overhead_frame()
        try:
            if run.end_stream and not late:
                self._end_remote(stream)
            elif stream.unacknowledged * 2 > self._limits.stream_window:
                self._update_window(stream)
        except BrokenStreamError as fault:
            self.stream_error(fault)
        return run.stop

    def reset(self, stream_id: int, payload: bytes) -> None:
        """RST_STREAM (RFC 9113 6.4). One that follows its HEADERS at once is counted: rapid reset, CVE-2023-44487."""
        if len(payload) != 4:
            raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a RST_STREAM is 4 bytes")
        stream = self._streams.open.get(stream_id)
        if stream is None:
            if self._streams.state(stream_id) is StreamState.IDLE:
                raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
            self.count_overhead_frame()
            return
        self._outgoing.discard(stream)
        self._streams.close(stream, by_peer=True)
        if stream.half_closed_local:
            return
        stream.receiver.lost("reset")
        unanswered = stream.answered_in in (0, self._outgoing.batch)
        if unanswered and self._clock() - stream.opened_at < _RAPID:
            self._count_reset()

    def update_windows(self) -> None:
        """Return window to the peer once half is used; raises BrokenConnectionError if it sent more than its window."""
        window = self._limits.connection_window
        if self._unacknowledged > window:
            raise BrokenConnectionError(
                Http2ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window"
            )
        if self._unacknowledged * 2 > window:
            self._outgoing.write(window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        if self._withheld:
            for stream in list(self._withheld.values()):
                self._update_window(stream)

    def stream_error(self, fault: BrokenStreamError) -> None:
        """Reset the stream whose peer broke a rule: it is counted, answered or not (MadeYouReset, CVE-2025-8671)."""
        stream = self._streams.open.get(fault.stream_id)
        if stream is None:
            self.count_overhead_frame()
            self._streams.refuse(fault.stream_id)
            self._outgoing.write(rst_stream(fault.stream_id, fault.code))
            return
        self._outgoing.reset(stream, fault.code)
        if not stream.half_closed_local:
            stream.receiver.lost(str(fault))
        self._count_reset()

    def _count_reset(self) -> None:
        if not self._resets.take():
            raise BrokenConnectionError(
                Http2ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset unanswered"
            )

    def _add_fragment(self, piece: bytes) -> None:
        self._block.append(piece)
        self._block_size += len(piece)
        if self._block_size > self._limits.header_list:
            raise BrokenConnectionError(Http2ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")

    def _header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        streams = self._streams
        if stream_id <= streams.last:
            self._trailers(stream_id, flags, block)
            return
        # decoded also if the stream is refused: the table must stay in step (RFC 9113 4.3)
        request = self._blocks.request(block)
        streams.last = stream_id
        # REFUSED_STREAM tells the client that it may retry (RFC 9113 8.7)
        if self.refusing or len(streams.open) >= self._limits.streams:
            raise BrokenStreamError(stream_id, Http2ErrorCode.REFUSED_STREAM, "new streams are refused")
        if request.malformed is not None:
            raise BrokenStreamError(stream_id, Http2ErrorCode.PROTOCOL_ERROR, request.malformed)
        stream = Stream(stream_id, request.content_length, self._clock())
        streams.add(stream)
        stream.receiver = self._accept(self._outgoing, stream, request)
        if flags & END_STREAM:
            self._end_remote(stream)

    def _trailers(self, stream_id: int, flags: int, block: bytes) -> None:
        """A header block on a stream that was opened before: trailers, or an error."""
        fields = self._blocks.decode(block)
        stream = self._streams.open.get(stream_id)
        if stream is None:
            state = self._streams.state(stream_id)
            if state is StreamState.CLOSED_BY_US:
                self.count_overhead_frame()
                return
            code = (
                Http2ErrorCode.PROTOCOL_ERROR
                if state is StreamState.UNKNOWN
                else Http2ErrorCode.STREAM_CLOSED
            )
            raise BrokenConnectionError(code, "headers on a stream that is closed or was skipped")
        if stream.half_closed_remote:
            raise BrokenStreamError(
                stream_id, Http2ErrorCode.STREAM_CLOSED, "headers after the end of their stream"
            )
        if not flags & END_STREAM:
            raise BrokenStreamError(stream_id, Http2ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        try:
            check_trailers(fields)
        except MalformedRequestError as error:
            raise BrokenStreamError(stream_id, Http2ErrorCode.PROTOCOL_ERROR, str(error)) from error
        self._end_remote(stream)

    def _data_after_end(self, stream_id: int, stream: Stream | None) -> None:
        """A frame on a stream that is closed. It is no fault if we closed it: the peer may not know yet (RFC 9113 5.1)."""
        state = self._streams.state(stream_id) if stream is None else StreamState.CLOSED_BY_PEER
        if state is StreamState.IDLE:
            raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a frame on an idle stream")
        self.count_overhead_frame()
        if state is not StreamState.CLOSED_BY_US:
            raise BrokenStreamError(
                stream_id, Http2ErrorCode.STREAM_CLOSED, "a frame after the end of its stream"
            )

    def _count_body(self, stream: Stream, size: int) -> None:
        """Compare the body with its content-length (RFC 9113 8.1.1)."""
        stream.body_left = (stream.body_left or 0) - size
        if stream.body_left < 0:
            raise BrokenStreamError(
                stream.id, Http2ErrorCode.PROTOCOL_ERROR, "more DATA than the content-length"
            )

    def _end_remote(self, stream: Stream) -> None:
        self._check_window(stream)
        if stream.body_left:
            raise BrokenStreamError(
                stream.id, Http2ErrorCode.PROTOCOL_ERROR, "less DATA than the content-length"
            )
        stream.half_closed_remote = True
        if stream.half_closed_local:
            self._streams.close(stream, by_peer=True)
        else:
            stream.receiver.ended()

    def _check_window(self, stream: Stream) -> None:
        """Raise BrokenStreamError for a stream that received more than its window (RFC 9113 6.9.1)."""
        if stream.unacknowledged > self._limits.stream_window:
            fault = "more DATA than the stream's window"
            raise BrokenStreamError(stream.id, Http2ErrorCode.FLOW_CONTROL_ERROR, fault)

    def _update_window(self, stream: Stream) -> None:
        """Return window to a stream whose peer reads the answer; reset one whose answer is complete."""
        self._withheld.pop(stream.id, None)
        if stream.id not in self._streams.open:
            return
        self._check_window(stream)
        if stream.half_closed_local:
            # the answer is complete and the rest of the request not needed (RFC 9113 8.1)
            self._outgoing.reset(stream, Http2ErrorCode.NO_ERROR)
        elif stream.waiting:
            self._withheld[stream.id] = stream
        else:
            self._outgoing.write(window_update(stream.id, stream.unacknowledged))
            stream.unacknowledged = 0


def strip_priority(stream_id: int, payload: bytes) -> bytes:
    """The payload without its priority, which is ignored (RFC 9113 5.3.2); raises BrokenConnectionError if it is malformed."""
    if len(payload) < 5:
        raise BrokenConnectionError(Http2ErrorCode.FRAME_SIZE_ERROR, "a priority is 5 bytes")
    if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == stream_id:
        raise BrokenConnectionError(Http2ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
    return payload[5:]
