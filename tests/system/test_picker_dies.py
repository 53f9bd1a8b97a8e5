"""Killing the picker while responses stream through Envoy cuts none of them."""

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from examples.demo.cluster import MODEL, DemoCluster
from tests.in_time import TooLateError, with_more_time


async def stream(session: aiohttp.ClientSession, url: str, begun: asyncio.Event, tokens: int = 150) -> bytes:
    """The last line of a streamed answer; 150 tokens take about two seconds."""
    body = {"model": MODEL, "prompt": "Who is there?", "max_tokens": tokens, "stream": True}
    last = b""
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200
        async for line in answer.content:
            begun.set()
            last = line.strip() or last
    return last


@pytest.mark.timeout(400)
@with_more_time(2000)
async def test_a_killed_picker_cuts_no_answer(tmp_path: Path, ms: int) -> None:
    place = tmp_path / str(ms)
    place.mkdir(mode=0o700)
    async with DemoCluster(place) as cluster, aiohttp.ClientSession() as session:
        begun, tokens = [asyncio.Event() for _ in range(12)], 150 * ms // 2000
        answers = [asyncio.create_task(stream(session, cluster.url, event, tokens)) for event in begun]
        async with asyncio.timeout(90 + ms / 1000):
            await asyncio.gather(*(event.wait() for event in begun))
            cluster.picker.send(signal.SIGKILL)
            assert await cluster.picker.wait() == -signal.SIGKILL
            if any(answer.done() for answer in answers):  # they must outlive the picker to prove it
                await asyncio.gather(*answers)
                raise TooLateError
            assert set(await asyncio.gather(*answers)) == {b"data: [DONE]"}


async def test_a_picker_that_is_told_to_end_fails_no_request_under_way(tmp_path: Path) -> None:
    async with DemoCluster(tmp_path) as cluster, aiohttp.ClientSession() as session:
        begun = [asyncio.Event() for _ in range(12)]
        answers = [asyncio.create_task(stream(session, cluster.url, event)) for event in begun]
        async with asyncio.timeout(90):
            await asyncio.gather(*(event.wait() for event in begun))
            cluster.picker.send(signal.SIGTERM)
            assert await cluster.picker.wait() == 0
            assert set(await asyncio.gather(*answers)) == {b"data: [DONE]"}
