"""More idle connections than descriptors: the pages still answer, and the log stays short."""

import asyncio
from pathlib import Path

import aiohttp

from tests.few_descriptors import LOG, few_descriptors, idle_connections, soft_limit

MEMORY = """
broker: memory://
http: {host: 127.0.0.1, port: 0}
targets: [{name: pool, url: "http://127.0.0.1:9"}]
queues: [{name: batch, target: pool, gate: {type: constant}}]
"""


async def test_pages_are_answered_and_the_log_is_short(tmp_path: Path) -> None:
    config, log = tmp_path / "config.yaml", tmp_path / "log"
    config.write_text(MEMORY)
    async with few_descriptors(log, "-m", "dispatcher", "--config", str(config), soft=128) as running:
        assert running.stdout is not None
        async with asyncio.timeout(90):
            word, http, *_ = (await running.stdout.readline()).decode().split()
        assert word == "ready", log.read_text()
        assert soft_limit(running.pid) == 256
        address = http.partition("=")[2]
        timeout = aiohttp.ClientTimeout(total=90)
        with idle_connections(address):
            for page in ("healthz", "readyz", "metrics"):
                async with (
                    aiohttp.ClientSession(timeout=timeout) as client,
                    client.get(f"http://{address}/{page}") as answer,
                ):
                    assert answer.status == 200
    assert log.stat().st_size < LOG, log.read_text()[:2000]
