"""h2load, nghttp2's load generator, as the picker's client: streams that are closed in order, and many at once."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.picking.ext_proc_messages import stream_template
from epp.ext_proc.protocol import EXT_PROC
from tests.eventually import eventually
from tests.system.picker_process import picking

STREAMS, BODY = 20_000, 4096


async def test_every_stream_of_h2load_is_answered_whole(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    said = stream_template(BODY)
    request = tmp_path / "request"
    request.write_bytes(b"".join(said.numbered(1)))
    async with picking() as picker:
        began = time.monotonic()
        running = await asyncio.create_subprocess_exec(
            *("h2load", "--requests", str(STREAMS), "--clients", "8", "--max-concurrent-streams", "32"),
            *(
                "--data",
                str(request),
                "--header",
                "content-type: application/grpc",
                "--header",
                "te: trailers",
            ),
            f"http://127.0.0.1:{picker.port}/{EXT_PROC}/Process",
            stdout=asyncio.subprocess.PIPE,
        )
        output = (await running.communicate())[0].decode()
        took = time.monotonic() - began
        assert await picker.picked() == STREAMS
        await eventually(picker.is_idle)
    assert f"{STREAMS} succeeded, 0 failed, 0 errored, 0 timeout" in output, output
    assert f"{STREAMS} 2xx, 0 3xx, 0 4xx, 0 5xx" in output, output
    answered = re.search(r"\((\d+)\) data$", output, re.MULTILINE)
    assert answered is not None, output
    assert int(answered[1]) > STREAMS * said.body_size  # each got its body back, and where it goes
    figure(f"h2load: {STREAMS} streams of {BODY} bytes, 8 connections, {STREAMS / took:.0f} a second")
