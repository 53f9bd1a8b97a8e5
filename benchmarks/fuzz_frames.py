"""Generates random, broken and truncated HTTP/2 frames and gRPC messages for `benchmarks/fuzz_wire.py`."""

import random
from collections.abc import Callable, Mapping
from typing import Any, cast

from hpack import Encoder

from epp.wire.http2 import frames
from epp.wire.messages.ext_proc_pb2 import HeaderValue, ProcessingMode, ProcessingRequest
from epp.wire.server.grpc_messages import prefixed

METHODS = (
    b"/envoy.service.ext_proc.v3.ExternalProcessor/Process",
    b"/grpc.health.v1.Health/Watch",
    b"/no/Thing",
)
_CONTROL = (frames.SETTINGS, frames.PING, frames.PRIORITY, frames.WINDOW_UPDATE, frames.RST_STREAM)


class BrokenClient:
    """The client of one connection; `count`: frames and messages so far. `rng` determines all that it writes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._encoder = Encoder()
        self._last = 0
        self.count = 0

    def frame(self) -> bytes:
        """Mostly a frame that the protocol allows now, else any."""
        rng = self._rng
        self.count += 1
        if rng.random() < 0.005:
            kind, flags, stream = (
                rng.randrange(12),
                rng.randrange(256),
                rng.choice((0, 1, self._last, 2, 2**31 - 1)),
            )
            write = self._payloads.get(kind, BrokenClient._anything)
            return frames.frame(kind, flags, stream, write(self)[:20_000])
        kind = rng.choices((frames.DATA, frames.HEADERS, *_CONTROL), (50, 20, 6, 3, 3, 8, 5))[0]
        if kind == frames.HEADERS or not self._last:
            return self._request()
        stream = max(1, self._last - 2 * rng.randrange(6))
        if kind in (frames.SETTINGS, frames.PING) or (kind == frames.WINDOW_UPDATE and rng.random() < 0.5):
            stream = 0
        flags = frames.END_STREAM if kind == frames.DATA and rng.random() < 0.2 else 0
        return frames.frame(kind, flags, stream, self._payloads[kind](self)[:16_384])

    def _request(self) -> bytes:
        rng = self._rng
        late = rng.random() < 0.1 and self._last > 0
        if not late:
            self._last += 2 if self._last % 2 else 1
        block, end = self._block(), frames.END_STREAM if late or rng.random() < 0.1 else 0
        if rng.random() < 0.8:
            begun = frames.frame(frames.HEADERS, end | frames.END_HEADERS, self._last, block)
            if end or rng.random() < 0.2:
                return begun
            self.count += 2
            first = good(end_of_stream=rng.random() < 0.3, mode=rng.randrange(7))
            return begun + frames.frame(frames.DATA, 0, self._last, prefixed([first]))
        cut = rng.randrange(len(block) + 1)
        self.count += 1
        return frames.frame(frames.HEADERS, end, self._last, block[:cut]) + frames.frame(
            frames.CONTINUATION, frames.END_HEADERS, self._last, block[cut:]
        )

    def _anything(self) -> bytes:
        return self._rng.randbytes(self._rng.choice((0, 4, 5, 8, self._rng.randrange(100))))

    def _block(self) -> bytes:
        rng = self._rng
        fields = headers(rng.choice(METHODS))
        if rng.random() < 0.2:
            fields.append((b"x-" + rng.randbytes(3).hex().encode(), rng.randbytes(5)))
        if rng.random() < 0.1:
            fields.append((b"grpc-timeout", b"1S"))
        if rng.random() < 0.1:
            rng.shuffle(fields)
        block = bytes(self._encoder.encode(fields))
        return block if rng.random() < 0.98 else self.mutated(block)

    def _messages(self) -> bytes:
        rng = self._rng
        count = rng.randrange(1, 4)
        self.count += count
        data = prefixed([self._message() for _ in range(count)])
        return data if rng.random() < 0.8 else data[: rng.randrange(len(data) + 1)]

    def _message(self) -> bytes:
        rng = self._rng
        message = ProcessingRequest()
        kind = rng.randrange(7)
        if kind == 0:
            return rng.randbytes(rng.randrange(50))
        if kind <= 2:
            return good(end_of_stream=rng.random() < 0.5, mode=rng.randrange(7))
        if kind <= 4:
            message.request_body.body = bytes(rng.choice((0, 10, 5_000, 15_000)))
            message.request_body.end_of_stream = rng.random() < 0.5
        elif kind == 5:
            message.response_headers.headers.headers.append(_header(":status", b"200"))
        else:
            message.response_body.body = bytes(rng.randrange(10_000))
        whole = message.SerializeToString()
        return whole if rng.random() < 0.9 else self.mutated(whole)

    def _settings(self) -> bytes:
        rng = self._rng
        window, size = rng.choice((0, 1, 100, 65_535, 2**20)), rng.choice((16_384, 20_000, 2**24 - 1))
        values = {
            frames.INITIAL_WINDOW_SIZE: window,
            frames.MAX_FRAME_SIZE: size,
            rng.randrange(8, 99): window,
        }
        if rng.random() < 0.05:
            values[rng.randrange(8)] = rng.choice((0, 1, 2**31))
        return frames.settings(values)[frames.FRAME_HEADER_SIZE :]

    def _window(self) -> bytes:
        rng = self._rng
        return (0 if rng.random() < 0.01 else rng.choice((1, 1_000, 100_000))).to_bytes(4, "big")

    def _reset(self) -> bytes:
        return self._rng.randrange(16).to_bytes(4, "big")

    def _priority(self) -> bytes:
        return bytes(5)

    def _ping(self) -> bytes:
        return self._rng.randbytes(8)

    def mutated(self, data: bytes) -> bytes:
        """Changes up to three bytes."""
        changed = bytearray(data or b"\0")
        for _ in range(self._rng.randrange(1, 4)):
            changed[self._rng.randrange(len(changed))] = self._rng.randrange(256)
        return bytes(changed)

    def cut(self, data: bytes) -> list[bytes]:
        """Cuts the bytes at random places, as reads from a socket do."""
        if self._rng.random() < 0.7:
            return [data]
        at = sorted(self._rng.randrange(len(data) + 1) for _ in range(3))
        return [data[: at[0]], data[at[0] : at[1]], data[at[1] : at[2]], data[at[2] :]]

    _payloads: Mapping[int, Callable[["BrokenClient"], bytes]] = {
        frames.DATA: _messages,
        frames.HEADERS: _block,
        frames.SETTINGS: _settings,
        frames.PING: _ping,
        frames.RST_STREAM: _reset,
        frames.PRIORITY: _priority,
        frames.WINDOW_UPDATE: _window,
    }


def headers(path: bytes) -> list[tuple[bytes, bytes]]:
    """The header block of a gRPC request."""
    pseudo = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"epp")]
    return [*pseudo, (b"te", b"trailers"), (b"content-type", b"application/grpc")]


def _header(key: str, value: bytes) -> bytes:
    return HeaderValue(key=key, raw_value=value).SerializeToString()


def good(*, end_of_stream: bool = True, mode: int = ProcessingMode.FULL_DUPLEX_STREAMED) -> bytes:
    """A valid first message of an ext_proc stream."""
    message = ProcessingRequest()
    message.request_headers.end_of_stream = end_of_stream
    message.request_headers.headers.headers.append(_header(":method", b"POST"))
    message.protocol_config.request_body_mode = cast("Any", mode)
    message.protocol_config.response_body_mode = ProcessingMode.FULL_DUPLEX_STREAMED
    return message.SerializeToString()
