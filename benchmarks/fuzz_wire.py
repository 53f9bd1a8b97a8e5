"""`python -m benchmarks.fuzz_wire [FRAMES]`: random and broken frames and messages against the picker's HTTP/2 server.

No sockets. After every connection: nothing may be held, every reservation must be back, what was said must be frames,
and a request on a fresh connection must be answered. A seed makes a run repeatable.
"""

import logging
import random
import sys
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from hpack import Encoder

from benchmarks.processor import resident_megabytes
from epp.body import Budget
from epp.director import Pick
from epp.exchange import Exchange
from epp.health import Health
from epp.protocol import Rejection, Subset
from epp.request import InferenceRequest
from epp.rules import Rules
from epp.wire import frames
from epp.wire.connection import Connection
from epp.wire.grpc_call import Methods
from epp.wire.grpc_messages import prefixed
from epp.wire.http2_health import health_methods
from epp.wire.http2_processor import ExternalProcessor
from epp.wire.limits import Limits
from epp.wire.messages.ext_proc_pb2 import HeaderValue, ProcessingMode, ProcessingRequest

METHODS = (
    b"/envoy.service.ext_proc.v3.ExternalProcessor/Process",
    b"/grpc.health.v1.Health/Watch",
    b"/no/Thing",
)
WRITES_A_CONNECTION = 200
_CONTROL = (frames.SETTINGS, frames.PING, frames.PRIORITY, frames.WINDOW_UPDATE, frames.RST_STREAM)


class Fuzz:
    """One run; `frames_fed` counts frames and the messages in them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._now = 0.0
        self._memory = Budget(64 * 1024 * 1024)
        self.frames_fed = 0
        self.slowest = 0.0
        self._taken = 0
        self._given_back = 0
        self._encoder = Encoder()
        self._last = 0
        self._processor = ExternalProcessor(self._exchange, lambda: self._now)
        self._health = Health(lambda: self._now)
        methods = health_methods(self._health) | self._processor.methods()
        self._calls = Methods(methods, 4 * 1024 * 1024, self._memory, lambda *_: cast("Any", _Never()))

    def connection(self) -> None:
        """One connection's life, from its preface to its end."""
        rng = self._rng
        self._encoder = Encoder()
        self._last = 0
        connection = self._open()
        for _ in range(rng.randrange(WRITES_A_CONNECTION)):
            written = b"".join(self._frame() for _ in range(rng.randrange(1, 6)))
            if rng.random() < 0.01:
                written = self._mutated(written)
            for piece in self._cut(written):
                self._feed(connection, piece)
            if connection.over:
                break
            self._now += 0.01
        connection.lose("reset")
        connection.take()
        self._check(connection)

    def _open(self) -> Connection:
        limits = Limits(streams=50, stream_window=200_000, connection_window=1_000_000)
        connection = Connection(self._calls.accept, limits, self._memory, lambda: None, lambda: self._now)
        connection.receive(frames.PREFACE + frames.settings({}))
        return connection

    def _feed(self, connection: Connection, piece: bytes) -> None:
        started = time.perf_counter()
        connection.receive(piece)
        said = bytearray()
        while written := connection.take():
            said += written
        self.slowest = max(self.slowest, time.perf_counter() - started)
        at = 0
        while at < len(said):
            high, low, kind, _, _ = frames.HEAD.unpack_from(said, at)
            assert kind in range(10), "something was said that is no frame"
            at += frames.HEAD_SIZE + (high << 8 | low)
        assert at == len(said), "the last frame that was said is not whole"
        if self._rng.random() < 0.02:
            connection.block(self._rng.random() < 0.5)

    def _check(self, connection: Connection) -> None:
        assert self._memory.held == 0, f"{self._memory.held} bytes are held by nobody"
        assert not connection.streams.open
        assert not self._processor.streams
        assert not self._health.watchers
        assert self._taken == self._given_back, "a reservation was not given back"
        fresh = self._open()
        fresh.take()
        block = bytes(Encoder().encode(_headers(METHODS[0])))
        fresh.receive(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block))
        fresh.receive(frames.frame(frames.DATA, frames.END_STREAM, 1, prefixed([_good()])))
        assert b"grpc-status\x010" in fresh.take(), "a request after all that was not answered"

    def _exchange(self) -> Exchange:
        return Exchange(cast("Any", self), Rules(max_body_bytes=1_000_000), budget=self._memory)

    def direct(self, headers: Mapping[str, str], body: object, subset: Subset | None, now: float) -> Pick:
        """Mostly a pick, sometimes something else."""
        luck = self._rng.random()
        if luck < 0.1:
            raise Rejection(429, "saturated", "later")
        self._taken += 1
        endpoint = SimpleNamespace(destination="10.0.0.1:8000")
        request = InferenceRequest(request_id="r", path="/v1/completions", headers=headers)
        return Pick(request, (cast("Any", endpoint),))

    def served(self, pick: Pick, destination: str, now: float) -> None:
        """Is of no interest here."""

    def responded(self, pick: Pick, status: int, now: float) -> None:
        """Is of no interest here."""

    def release(self, pick: Pick, now: float) -> None:
        """Counts."""
        self._given_back += 1

    def _frame(self) -> bytes:
        """Mostly one that a client may send now, else any."""
        rng = self._rng
        self.frames_fed += 1
        if rng.random() < 0.005:
            kind, flags, stream = (
                rng.randrange(12),
                rng.randrange(256),
                rng.choice((0, 1, self._last, 2, 2**31 - 1)),
            )
            write = self._payloads.get(kind, Fuzz._anything)
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
            self.frames_fed += 2
            good = _good(end_of_stream=rng.random() < 0.3, mode=rng.randrange(7))
            return begun + frames.frame(frames.DATA, 0, self._last, prefixed([good]))
        cut = rng.randrange(len(block) + 1)
        self.frames_fed += 1
        return frames.frame(frames.HEADERS, end, self._last, block[:cut]) + frames.frame(
            frames.CONTINUATION, frames.END_HEADERS, self._last, block[cut:]
        )

    def _anything(self) -> bytes:
        return self._rng.randbytes(self._rng.choice((0, 4, 5, 8, self._rng.randrange(100))))

    def _block(self) -> bytes:
        rng = self._rng
        fields = _headers(rng.choice(METHODS))
        if rng.random() < 0.2:
            fields.append((b"x-" + rng.randbytes(3).hex().encode(), rng.randbytes(5)))
        if rng.random() < 0.1:
            fields.append((b"grpc-timeout", b"1S"))
        if rng.random() < 0.1:
            rng.shuffle(fields)
        block = bytes(self._encoder.encode(fields))
        return block if rng.random() < 0.98 else self._mutated(block)

    def _messages(self) -> bytes:
        rng = self._rng
        count = rng.randrange(1, 4)
        self.frames_fed += count
        data = prefixed([self._message() for _ in range(count)])
        return data if rng.random() < 0.8 else data[: rng.randrange(len(data) + 1)]

    def _message(self) -> bytes:
        rng = self._rng
        message = ProcessingRequest()
        kind = rng.randrange(7)
        if kind == 0:
            return rng.randbytes(rng.randrange(50))
        if kind <= 2:
            return _good(end_of_stream=rng.random() < 0.5, mode=rng.randrange(7))
        if kind <= 4:
            message.request_body.body = bytes(rng.choice((0, 10, 5_000, 15_000)))
            message.request_body.end_of_stream = rng.random() < 0.5
        elif kind == 5:
            message.response_headers.headers.headers.append(_header(":status", b"200"))
        else:
            message.response_body.body = bytes(rng.randrange(10_000))
        whole = message.SerializeToString()
        return whole if rng.random() < 0.9 else self._mutated(whole)

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
        return frames.settings(values)[frames.HEAD_SIZE :]

    def _window(self) -> bytes:
        rng = self._rng
        return (0 if rng.random() < 0.01 else rng.choice((1, 1_000, 100_000))).to_bytes(4, "big")

    def _reset(self) -> bytes:
        return self._rng.randrange(16).to_bytes(4, "big")

    def _priority(self) -> bytes:
        return bytes(5)

    def _ping(self) -> bytes:
        return self._rng.randbytes(8)

    def _mutated(self, data: bytes) -> bytes:
        changed = bytearray(data or b"\0")
        for _ in range(self._rng.randrange(1, 4)):
            changed[self._rng.randrange(len(changed))] = self._rng.randrange(256)
        return bytes(changed)

    def _cut(self, data: bytes) -> list[bytes]:
        if self._rng.random() < 0.7:
            return [data]
        at = sorted(self._rng.randrange(len(data) + 1) for _ in range(3))
        return [data[: at[0]], data[at[0] : at[1]], data[at[1] : at[2]], data[at[2] :]]

    _payloads: Mapping[int, Callable[["Fuzz"], bytes]] = {
        frames.DATA: _messages,
        frames.HEADERS: _block,
        frames.SETTINGS: _settings,
        frames.PING: _ping,
        frames.RST_STREAM: _reset,
        frames.PRIORITY: _priority,
        frames.WINDOW_UPDATE: _window,
    }


class _Never:
    def cancel(self) -> None:
        """Nothing was going to happen."""


def _headers(path: bytes) -> list[tuple[bytes, bytes]]:
    pseudo = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"epp")]
    return [*pseudo, (b"te", b"trailers"), (b"content-type", b"application/grpc")]


def _header(key: str, value: bytes) -> bytes:
    return HeaderValue(key=key, raw_value=value).SerializeToString()


def _good(*, end_of_stream: bool = True, mode: int = ProcessingMode.FULL_DUPLEX_STREAMED) -> bytes:
    message = ProcessingRequest()
    message.request_headers.end_of_stream = end_of_stream
    message.request_headers.headers.headers.append(_header(":method", b"POST"))
    message.protocol_config.request_body_mode = cast("Any", mode)
    message.protocol_config.response_body_mode = ProcessingMode.FULL_DUPLEX_STREAMED
    return message.SerializeToString()


def run(count: int, seed: int) -> Fuzz:
    """Feed `count` frames and messages; raises AssertionError at what must not be."""
    fuzz = Fuzz(seed)
    while fuzz.frames_fed < count:
        fuzz.connection()
    return fuzz


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    logging.disable()  # every broken conversation is an error to the log
    run(10_000, seed)
    before, started = resident_megabytes(), time.perf_counter()
    fuzz = run(count, seed)
    seconds = time.perf_counter() - started
    print(
        f"seed {seed}: {fuzz.frames_fed} frames and messages in {seconds:.0f} s, slowest read {fuzz.slowest:.3f} s"
    )
    print(f"resident memory {before:.1f} MB before, {resident_megabytes():.1f} MB after")
    return 0


if __name__ == "__main__":
    sys.exit(main())
