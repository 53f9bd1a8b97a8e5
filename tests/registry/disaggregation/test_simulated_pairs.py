"""The sidecar between two simulated workers, which really hand blocks over: nothing is left behind, whoever leaves."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.eventually import asked_until
from tests.free_port import free_port
from tests.registry.disaggregation.test_program import program
from tests.started import ready, started
from tests.warm_python import WARM_PYTHON

ROOT = Path(__file__).parents[3]
LONG = {"model": "tiny", "prompt": "again and again " * 400, "max_tokens": 30}
_SAMPLE = re.compile(
    r"^(?:simulator|vllm):(held_kv_blocks|nixl_num_kv_expired_reqs|nixl_num_failed_transfers)(?:_total)?\{\S* (\S+)",
    re.MULTILINE,
)


@asynccontextmanager
async def simulator(role: str, *arguments: str) -> AsyncIterator[str]:
    """Its `host:port`, once it is ready."""
    command = (WARM_PYTHON, "-m", "examples.simulator", "--no-register", "--role", role, *arguments)
    async with started(*command, cwd=ROOT) as process:
        yield (await ready(process))["http"]


@asynccontextmanager
async def pair(connector: str, *arguments: str) -> AsyncIterator[tuple[str, str, str]]:
    """`host:port` of the sidecar, of the prefill worker and of the decode worker."""
    bootstrap = free_port()
    async with (
        simulator("prefill", "--bootstrap-port", str(bootstrap), *arguments) as prefill,
        simulator("decode", *arguments) as decode,
        program(
            *("--kv-connector", connector, "--model-server-port", decode.rpartition(":")[2]),
            *("--sglang-bootstrap-port", str(bootstrap), "--allow-prefill", "127.0.0.1"),
        ) as (_, sidecar),
    ):
        yield sidecar, prefill, decode


async def samples(session: aiohttp.ClientSession, *workers: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for worker in workers:
        async with session.get(f"http://{worker}/metrics") as page:
            for name, value in _SAMPLE.findall(await page.text()):
                found[name] = found.get(name, 0.0) + float(value)
    return found


@pytest.mark.parametrize("connector", ["nixlv2", "sglang", "trtllm"])
async def test_the_decode_worker_fetches_what_the_prefill_worker_computed(connector: str) -> None:
    async with pair(connector) as (sidecar, prefill, decode), aiohttp.ClientSession() as session:
        headers = {"x-prefiller-host-port": prefill}
        for stream in (False, True):
            body = LONG | {"stream": stream}
            url = f"http://{sidecar}/v1/completions"
            async with session.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                assert "x-adsum-prefill-fallback" not in answer.headers
                text = await answer.read()
            assert text.endswith(b"data: [DONE]\n\n") if stream else b"usage" in text
        async with session.get(f"http://{prefill}/metrics") as page:
            assert re.search(r"vllm:prompt_tokens_total\S* [1-9]", await page.text())
        await asked_until(lambda: samples(session, prefill), lambda found: found["held_kv_blocks"] == 0)
        assert (await samples(session, prefill, decode))["nixl_num_failed_transfers"] == 0


async def test_clients_that_leave_at_any_time_leave_nothing_behind() -> None:
    """The lease of a simulated worker is 30 s, as vLLM's: what is held for less was not left to it."""
    chance = random.Random(7)
    async with (
        pair("nixlv2", "--transfer-seconds", "0.5") as (sidecar, prefill, decode),
        aiohttp.ClientSession() as session,
    ):

        async def impatient() -> None:
            body = LONG | {"stream": chance.random() < 0.5, "prompt": f"{chance.random()} " * 20}
            headers = {"x-prefiller-host-port": prefill}
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(0.01, 1.5)):
                    url = f"http://{sidecar}/v1/completions"
                    async with session.post(url, json=body, headers=headers) as answer:
                        await answer.read()

        await asyncio.gather(*(impatient() for _ in range(40)))
        await asked_until(lambda: samples(session, prefill), lambda found: found["held_kv_blocks"] == 0)
        found = await samples(session, prefill, decode)
        # of the prompts that are computed for longer than GRACE, one may end just as its connection is closed
        assert found["nixl_num_kv_expired_reqs"] <= 3
