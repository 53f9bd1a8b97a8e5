"""`python -m benchmarks.fuzz_wire [FRAMES]`: feeds random and broken frames and messages to the picker's HTTP/2 server.

No sockets. After every connection no memory may be held, every reservation must be released, the answers must be frames,
and a request on a fresh connection must be answered. A seed makes a run repeatable.
"""

import hashlib
import logging
import random
import sys
import time
from collections.abc import Mapping
from typing import Any, Self, cast

from hpack import Encoder

from benchmarks.fuzz_frames import METHODS, BrokenClient, good, headers
from benchmarks.process_usage import resident_megabytes
from epp.endpoints.endpoint import Endpoint
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.health import Health
from epp.outliers.settings import Failure
from epp.request.body import MemoryBudget
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.wire.http2 import frames
from epp.wire.http2.connection import Connection
from epp.wire.http2.limits import Limits
from epp.wire.server.grpc_call import MethodRouter
from epp.wire.server.grpc_messages import prefixed
from epp.wire.server.health import health_methods
from epp.wire.server.processor import ExternalProcessor

WRITES_A_CONNECTION = 200
_SOMEWHERE = Endpoint(id="a", incarnation="1", address="10.0.0.1", port=8000, metrics_port=8000)


class Fuzz:
    """One run; `frames_fed` counts frames and the messages in them, `answers_digest` covers all answers, write by write."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._now = 0.0
        self._memory = MemoryBudget(64 * 1024 * 1024)
        self.frames_fed = 0
        self.answers_digest = hashlib.sha256()
        self.slowest = 0.0
        self._taken = 0
        self._given_back = 0
        self._processor = ExternalProcessor(self._exchange, lambda: self._now)
        self._health = Health(lambda: self._now)
        methods = health_methods(self._health) | self._processor.methods()
        self._calls = MethodRouter(methods, 4 * 1024 * 1024, self._memory, lambda *_: cast("Any", _Never()))

    def connection(self) -> None:
        """Runs one connection, from its preface to its end."""
        rng = self._rng
        client = BrokenClient(rng)
        connection = self._open()
        for _ in range(rng.randrange(WRITES_A_CONNECTION)):
            written = b"".join(client.frame() for _ in range(rng.randrange(1, 6)))
            if rng.random() < 0.01:
                written = client.mutated(written)
            for piece in client.cut(written):
                self._feed(connection, piece)
            if connection.can_close:
                break
            self._now += 0.01
        self.frames_fed += client.count
        connection.abort("reset")
        connection.data_to_send()
        self._check(connection)

    def _open(self) -> Connection:
        limits = Limits(streams=50, stream_window=200_000, connection_window=1_000_000)
        connection = Connection(self._calls.accept, limits, self._memory, lambda: None, lambda: self._now)
        connection.receive(frames.PREFACE + frames.settings({}))
        return connection

    def _feed(self, connection: Connection, piece: bytes) -> None:
        started = time.perf_counter()
        connection.receive(piece)
        answers = bytearray()
        while written := connection.data_to_send():
            answers += written
        self.slowest = max(self.slowest, time.perf_counter() - started)
        self.answers_digest.update(b"%d " % len(answers) + answers)
        at = 0
        while at < len(answers):
            high, low, kind, _, _ = frames.FRAME_HEADER.unpack_from(answers, at)
            assert kind in range(10), "something was said that is no frame"
            at += frames.FRAME_HEADER_SIZE + (high << 8 | low)
        assert at == len(answers), "the last frame that was said is not whole"
        if self._rng.random() < 0.02:
            connection.set_blocked(self._rng.random() < 0.5)

    def _check(self, connection: Connection) -> None:
        assert self._memory.held == 0, f"{self._memory.held} bytes are held by nobody"
        assert not connection.streams.open
        assert not self._processor.streams
        assert not self._health.watchers
        assert self._taken == self._given_back, "a reservation was not given back"
        fresh = self._open()
        fresh.data_to_send()
        block = bytes(Encoder().encode(headers(METHODS[0])))
        fresh.receive(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block))
        fresh.receive(frames.frame(frames.DATA, frames.END_STREAM, 1, prefixed([good()])))
        assert b"grpc-status\x010" in fresh.data_to_send(), "a request after all that was not answered"

    def _exchange(self) -> Exchange:
        return Exchange(cast("Any", self), ExchangeSettings(max_body_bytes=1_000_000), budget=self._memory)

    def direct(
        self, headers: Mapping[str, str], body: object, subset: Subset | None, now: float, span: object = None
    ) -> Pick:
        """Mostly returns a pick, sometimes a rejection."""
        luck = self._rng.random()
        if luck < 0.1:
            raise Rejection(429, "saturated", "later")
        self._taken += 1
        request = InferenceRequest(request_id="r", path="/v1/completions", headers=headers)
        return Pick(request, (_SOMEWHERE,))

    @property
    def picks(self) -> Self:
        return self

    def served(self, pick: Pick, destination: str) -> None: ...

    def responded(self, pick: Pick, status: int, now: float, failure: Failure | None = None) -> None: ...

    def first_byte(self, pick: Pick, at: float, now: float) -> None: ...

    def retried(self, pick: Pick, attempts: int, now: float) -> None: ...

    def release(self, pick: Pick, now: float) -> None:
        self._given_back += 1


class _Never:
    def cancel(self) -> None: ...


def run(count: int, seed: int) -> Fuzz:
    """Feeds `count` frames and messages; raises AssertionError when an invariant breaks."""
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
    print(f"said {fuzz.answers_digest.hexdigest()}")
    print(f"resident memory {before:.1f} MB before, {resident_megabytes():.1f} MB after")
    return 0


if __name__ == "__main__":
    sys.exit(main())
