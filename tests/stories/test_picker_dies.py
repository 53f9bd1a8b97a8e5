"""Killing the picker while responses stream through Envoy cuts none of them."""

import asyncio
import signal
from pathlib import Path

import aiohttp

from examples.demo.cluster import MODEL, DemoCluster


async def stream(session: aiohttp.ClientSession, url: str, begun: asyncio.Event) -> bytes:
    """The last line of a streamed answer of 150 tokens, about two seconds long."""
    body = {"model": MODEL, "prompt": "Who is there?", "max_tokens": 150, "stream": True}
    last = b""
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200
        async for line in answer.content:
            begun.set()
            last = line.strip() or last
    return last


async def test_a_killed_picker_cuts_no_answer(tmp_path: Path) -> None:
    async with DemoCluster(tmp_path) as cluster, aiohttp.ClientSession() as session:
        begun = [asyncio.Event() for _ in range(12)]
        answers = [asyncio.create_task(stream(session, cluster.url, event)) for event in begun]
        async with asyncio.timeout(90):
            await asyncio.gather(*(event.wait() for event in begun))
            cluster.picker.send(signal.SIGKILL)
            assert await cluster.picker.wait() == -signal.SIGKILL
            assert not any(answer.done() for answer in answers), (
                "the answers must outlive the picker to prove it"
            )
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
