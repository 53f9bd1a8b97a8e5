"""More connections than descriptors, idle ones or those that wait: the pages still answer, and the log stays short."""

import asyncio
import json
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


async def test_who_waits_keeps_nobody_out(tmp_path: Path) -> None:
    """64 connections, of which 48 may wait: the others get at once what they would get after their deadline."""
    config, log = tmp_path / "config.yaml", tmp_path / "log"
    closed = {
        "type": "endpoint-scrape",
        "params": {"url": "http://127.0.0.1:9/metrics", "metric": "x", "pods": 1},
    }
    queue = (
        f"queues: [{{name: batch, target: pool, gate: {json.dumps(closed)}}}]\nfront_door: {{queue: batch}}\n"
    )
    http = "http: {host: 127.0.0.1, port: 0, health_address: '127.0.0.1:0'}"
    lines = [
        queue if line.startswith("queues") else http if line.startswith("http") else line
        for line in MEMORY.splitlines()
    ]
    config.write_text("\n".join(lines))
    async with few_descriptors(log, "-m", "dispatcher", "--config", str(config)) as running:
        assert running.stdout is not None
        async with asyncio.timeout(90):
            said = (await running.stdout.readline()).decode().split()
        assert said[:1] == ["ready"], log.read_text()
        ports = dict(word.split("=") for word in said[1:])
        url = f"http://{ports['http']}"
        timeout = aiohttp.ClientTimeout(total=90)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client,
            aiohttp.ClientSession(timeout=timeout) as other,
        ):

            async def wait() -> int:
                async with client.post(
                    f"{url}/v1/completions", json={"model": "m"}, headers={"X-Dispatch": "wait"}
                ) as answer:
                    return answer.status

            waiting = [asyncio.create_task(wait()) for _ in range(60)]
            done, _ = await asyncio.wait(waiting, timeout=90, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result() for task in done} == {202}
            for page in (
                f"{url}/healthz",
                f"http://{ports['health']}/healthz",
                f"http://{ports['health']}/metrics",
            ):
                async with other.get(page) as answer:
                    assert answer.status == 200
            async with other.post(
                f"{url}/v1/completions", json={"model": "m"}, headers={"X-Dispatch": "enqueue"}
            ) as answer:
                assert answer.status == 202
            while sum(task.done() for task in waiting) < 12:
                await asyncio.wait(
                    [one for one in waiting if not one.done()], return_when=asyncio.FIRST_COMPLETED
                )
            async with other.get(f"http://{ports['health']}/v1/requests/x") as answer:
                assert answer.status == 404, "the port of the probes serves nothing else"
            assert sum(not task.done() for task in waiting) == 48
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
