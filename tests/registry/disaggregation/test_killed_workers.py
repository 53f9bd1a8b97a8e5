"""Workers that are killed or stopped while they have a request: real processes, real signals."""

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

import discovery
from registry.disaggregation.allowed_workers import AllowedWorkers
from registry.disaggregation.prefill import PrefillLimits
from tests.eventually import eventually
from tests.registry.disaggregation.conftest import BODY, CHAT, bench
from tests.registry.disaggregation.workers import worker_process


async def has_a_prompt(port: int) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/seen") as answer:
        return CHAT in await answer.json()


async def test_a_prefill_worker_that_is_killed_in_the_midst_of_a_prompt() -> None:
    async with bench() as made, worker_process(held=True) as (process, port):
        headers = {"x-prefiller-host-port": f"127.0.0.1:{port}"}
        asking = asyncio.ensure_future(made.post(headers=headers).__aenter__())
        await eventually(lambda: has_a_prompt(port))
        process.send_signal(signal.SIGKILL)
        answer = await asyncio.wait_for(asking, 60)
        assert (answer.status, answer.headers["x-adsum-prefill-fallback"]) == (200, "unreachable")
        assert made.decode.seen[0].body == BODY


async def test_a_prefill_worker_that_is_stopped_in_the_midst_of_a_prompt(tmp_path: Path) -> None:
    """Its connections stay open: only discovery notices, because it does not answer the GET that it holds."""
    (tmp_path / "root").mkdir(mode=0o700)
    url = f"file://{tmp_path / 'root'}"
    allowed = AllowedWorkers()
    async with (
        bench(allowed=allowed, limits=PrefillLimits(timeout=3600)) as made,
        worker_process(held=True, url=url) as (process, port),
        discovery.open(url) as service,
        service.watch("prod", "prefill") as stream,
    ):
        following = asyncio.ensure_future(allowed.follow(stream))
        await eventually(lambda: allowed.allows(("127.0.0.1", port)))
        headers = {"x-prefiller-host-port": f"127.0.0.1:{port}"}
        asking = asyncio.ensure_future(made.post(headers=headers).__aenter__())
        await eventually(lambda: has_a_prompt(port))
        process.send_signal(signal.SIGSTOP)
        answer = await asyncio.wait_for(asking, 90)
        assert (answer.status, answer.headers["x-adsum-prefill-fallback"]) == (200, "lost")
        following.cancel()


async def test_a_decode_worker_that_is_killed_in_the_midst_of_its_tokens() -> None:
    async with worker_process(held=True) as (process, port), bench(decode_at=("127.0.0.1", port)) as made:
        async with made.post(body=BODY | {"stream": True}) as answer:
            assert answer.status == 200
            assert await answer.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGKILL)
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        await process.wait()  # its port closes after its connections
        async with made.post() as answer:  # the next one is told at once
            assert answer.status == 503
