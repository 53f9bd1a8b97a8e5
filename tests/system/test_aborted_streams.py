"""A hundred thousand ext_proc streams, each given up at some stage: nothing of them stays in the picker's process."""

import asyncio
from collections.abc import Callable

from benchmarks.picking.ext_proc_messages import StreamTemplate, stream_template
from benchmarks.process_usage import resident_megabytes
from epp.ext_proc.protocol import EXT_PROC
from epp.wire.http2 import frames
from epp.wire.http2.frames import ACK, DATA, END_HEADERS, HEADERS, PING, Http2ErrorCode, frame
from epp.wire.http2.header_blocks import literal
from tests.eventually import eventually
from tests.system.picker_process import picking

CONNECTIONS, STREAMS = 200, 500
ASKED = b"all read"
OPENING = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{EXT_PROC}/Process".encode()),
        (b":authority", b"picker"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
GREETING = (
    frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 24}) + frames.window_update(0, 1 << 30)
)


def stages(said: StreamTemplate) -> list[list[bytes]]:
    """The payloads of DATA frames that a stream has sent when it is given up."""
    opening = said.numbered(1)
    within = [*opening[:1], opening[1][:-7]]
    return [[], opening[:1], within, opening[:-1], opening, [*opening, said.response_headers]]


def stream(stream_id: int, sent: list[bytes], *, reset: bool) -> bytes:
    opened = frame(HEADERS, END_HEADERS, stream_id, OPENING)
    end = frames.rst_stream(stream_id, Http2ErrorCode.CANCEL) if reset else b""
    return opened + b"".join(frame(DATA, 0, stream_id, piece) for piece in sent) + end


async def aborted(port: int, said: StreamTemplate, number: int) -> None:
    """One connection: six of seven streams are reset, the others break with it, now and then before all of it is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 28)
    writer.write(GREETING)
    reading = asyncio.create_task(reader.readuntil(frame(PING, ACK, 0, ASKED)))
    kinds = stages(said)
    for count in range(STREAMS):
        writer.write(stream(2 * count + 1, kinds[(count + number) % len(kinds)], reset=bool(count % 7)))
        if count % 50 == 49:  # some are answered before they are given up, others not
            await writer.drain()
    if number % 4:
        writer.write(frame(PING, 0, 0, ASKED))
        await asyncio.wait([reading], timeout=90)
    writer.transport.abort()
    await asyncio.gather(reading, return_exceptions=True)


async def test_a_hundred_thousand_streams_given_up_at_every_stage(figure: Callable[[str], None]) -> None:
    said = stream_template(4096)
    async with picking() as picker:
        warm = 0.0
        for number in range(CONNECTIONS):
            await aborted(picker.port, said, number)
            if number == CONNECTIONS // 4:
                warm = resident_megabytes(picker.process.pid)
        await eventually(picker.is_idle)
        grown = resident_megabytes(picker.process.pid) - warm
        figure(f"{CONNECTIONS * STREAMS} aborted streams: 0 in flight, {grown:+.1f} MB")
        assert grown < 10
        assert await picker.picked() > CONNECTIONS * STREAMS / 5, "many had come far enough to be counted"
        assert picker.process.returncode is None
