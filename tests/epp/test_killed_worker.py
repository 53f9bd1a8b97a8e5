"""SIGKILL of a worker that holds no GET: how soon a whole picker stops to pick it."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import aio

from epp.config.settings import Settings
from epp.server import PickerServer
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from tests.model_server_process import model_server

KILLS = 3
CLAIMED = 0.1
"""Seconds, as benchmarks/README.md has it."""
PICKS_AFTER = 200


@asynccontextmanager
async def picking_from(*ports: int, **changes: Any) -> AsyncIterator[Any]:
    """`await pick()`: the destination of one request."""
    where = "static://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    settings = Settings(
        host="127.0.0.1", grpc_port=0, grpc_health_port=0, metrics_port=0, secure_serving=False, discovery=where, **changes
    )  # fmt: skip
    async with PickerServer(settings) as picker:
        address = dict(word.split("=") for word in picker.ready_line.split()[1:])["grpc"]
        async with aio.insecure_channel(address) as channel:
            process: Any = channel.stream_stream(
                "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
                request_serializer=ProcessingRequest.SerializeToString,
                response_deserializer=ProcessingResponse.FromString,
            )

            async def pick(message: ProcessingRequest) -> str:
                stream = process()
                await stream.write(message)
                answer = await stream.read()
                await stream.done_writing()
                await stream.code()
                (option,) = answer.request_headers.response.header_mutation.set_headers
                destination: str = option.header.raw_value.decode()
                return destination

            yield pick


async def seconds_until_unpicked(messages: Any, **changes: Any) -> float:
    """From SIGKILL to the last pick of the killed worker."""
    message = messages.headers({":method": "GET", ":path": "/health"}, end_of_stream=True)
    async with (
        model_server() as (process, killed),
        model_server() as (_, other),
        picking_from(killed, other, **changes) as pick,
    ):
        seen: set[str] = set()
        async with asyncio.timeout(90):
            while len(seen) < 2:
                seen.add(await pick(message))
        process.kill()
        killed_at = last = time.monotonic()
        unpicked = 0
        while unpicked < PICKS_AFTER:
            unpicked += 1
            if await pick(message) == f"127.0.0.1:{killed}":
                last, unpicked = time.monotonic(), 0
        return last - killed_at


@pytest.mark.parametrize("interval", [None, 3600.0], ids=["adaptive", "every hour"])
async def test_a_killed_worker_is_picked_no_more(
    messages: Any, interval: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if its page is read once an hour: the kept connection tells."""
    took = [await seconds_until_unpicked(messages, refresh_metrics_interval=interval) for _ in range(KILLS)]
    with capsys.disabled():
        print(
            f"\nSIGKILL to the last pick: median {statistics.median(took) * 1000:.1f} ms, max {max(took) * 1000:.1f} ms"
        )
    assert statistics.median(took) < 10 * CLAIMED
