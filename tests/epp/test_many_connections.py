"""Idle connections, more than the picker has descriptors, on each of its ports: the others are served."""

import asyncio
from pathlib import Path

import aiohttp
from grpc import aio

from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.epp.local_picker import addresses_in, health_over
from tests.few_descriptors import LOG, few_descriptors, idle_connections, soft_limit

PICKER = (
    *("-m", "epp", "--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
    *("--secure-serving=false", "--endpoint", "127.0.0.1:9", "-v", "0"),
)  # fmt: skip


async def ready(running: asyncio.subprocess.Process) -> dict[str, str]:
    assert running.stdout is not None
    async with asyncio.timeout(90):
        return addresses_in((await running.stdout.readline()).decode())


async def serving(address: str) -> int:
    """What grpc.health.v1 answers on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.insecure_channel(address, options=options) as channel:
        answer: HealthCheckResponse = await health_over(channel)(
            HealthCheckRequest(), timeout=90, wait_for_ready=True
        )
        return answer.status


async def page(address: str) -> int:
    timeout = aiohttp.ClientTimeout(total=90)
    async with (
        aiohttp.ClientSession(timeout=timeout) as client,
        client.get(f"http://{address}/healthz") as said,
    ):
        return said.status


async def test_all_ports_are_served_and_the_log_is_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with few_descriptors(log, *PICKER) as running:
        where = await ready(running)
        for crowded in ("grpc", "health", "metrics"):
            with idle_connections(where[crowded]):
                for _ in range(3):
                    assert await serving(where["grpc"]) == HealthCheckResponse.SERVING, crowded
                    assert await serving(where["health"]) == HealthCheckResponse.SERVING, crowded
                    assert await page(where["metrics"]) == 200, crowded
        assert running.returncode is None
    assert log.stat().st_size < LOG, log.read_text()[:2000]


async def test_it_takes_as_many_descriptors_as_it_may(tmp_path: Path) -> None:
    async with few_descriptors(tmp_path / "log", *PICKER, soft=128, hard=512) as running:
        await ready(running)
        assert soft_limit(running.pid) == 512
