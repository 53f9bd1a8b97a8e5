"""Idle connections, more than the sidecar has descriptors: its worker's metadata are answered, and its log stays short."""

import asyncio
from pathlib import Path

import aiohttp

import discovery
from tests.few_descriptors import LOG, few_descriptors, idle_connections, soft_limit
from tests.registry.model_server import model_server


async def test_metadata_are_answered_and_the_log_is_short(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    url, log = f"file://{tmp_path / 'root'}", tmp_path / "log"
    who = ("--namespace", "n", "--component", "c", "--address", "127.0.0.1", "--discovery", url)
    async with model_server() as server:
        command = ("-m", "registry", *who, "--server", server.url)
        async with few_descriptors(log, *command, soft=128) as running, discovery.open(url) as found:
            [instance] = await discovery.wait_for_instances(found, "n", "c", count=1, timeout=90)
            assert soft_limit(running.pid) == 256
            timeout = aiohttp.ClientTimeout(total=90)
            with idle_connections(instance.authority):
                for _ in range(3):
                    async with (
                        aiohttp.ClientSession(timeout=timeout) as client,
                        client.get(f"http://{instance.authority}/metadata") as answer,
                    ):
                        assert answer.status == 200
                    await asyncio.sleep(0.1)
    assert log.stat().st_size < LOG, log.read_text()[:2000]
