"""Measures the Go async processor (llm-d-async) on the dispatcher's benchmark: the same requests, Redis, gateway and cores.

Its queue is a sorted set of messages in its own format; the length of its result list counts the answers.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from benchmarks.ports import free_ports
from benchmarks.process_usage import processor_seconds, resident_megabytes

AS_SHIPPED = {"poll_interval_ms": 1000, "batch_size": 10}
AT_ITS_BEST = {"poll_interval_ms": 10, "batch_size": 1000}
WATCHED = 10.0
"""Seconds that a measurement may take: with its default settings it takes ten requests a second."""
TIMEOUT = 30.0
_QUEUE, _RESULTS = "request-sortedset", "result-list"
_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "users": [{"name": "none", "user": {}}],
    "current-context": "none",
}
"""It does not start without a kubeconfig, but never connects to the server in it."""


@dataclass(frozen=True, slots=True)
class Work:
    """`count` requests in Redis, for one gateway; `core`: the one on which the processor runs."""

    redis_url: str
    redis_pid: int
    gateway: str
    payload: bytes
    count: int
    concurrency: int
    core: int


async def measure(binary: Path, work: Work) -> None:
    """Prints the throughput with the default settings and with the best ones; drops the requests that remain."""
    async with Redis.from_url(work.redis_url) as client:
        for name, settings in (("as shipped", AS_SHIPPED), ("at its best settings", AT_ITS_BEST)):
            await client.delete(_QUEUE, _RESULTS)
            await _submit(client, work.payload, work.count)
            async with _processor(binary, work, settings) as pid:
                await _measure_rate(client, name, pid, work)


async def _submit(client: Redis, payload: bytes, count: int) -> None:
    deadline = int(time.time()) + 3600
    body = json.loads(payload)
    for start in range(0, count, 500):
        members = {}
        for number in range(start, min(count, start + 500)):
            data = {"id": f"g{number}", "created": deadline - 3600, "deadline": deadline, "payload": body}
            routing = {"request_token": f"t{number}", "request_queue_name": _QUEUE}
            members[json.dumps({"internal": routing, "request_kind": "redis", "data": data})] = deadline
        await client.zadd(_QUEUE, members)


async def _measure_rate(client: Redis, name: str, pid: int, work: Work) -> None:
    """Measures from 10% of the requests to all, or to as many as it answers in time."""
    count, redis_pid = work.count, work.redis_pid
    given_up = time.perf_counter() + TIMEOUT
    while (first := await _answered(client)) < (1 if name == "as shipped" else count / 10):
        if time.perf_counter() > given_up:
            sys.exit(f"the Go processor answered {first} of {count} requests within {TIMEOUT:g} s")
        await asyncio.sleep(0.01)
    begun, busy, redis_busy = time.perf_counter(), processor_seconds(pid), processor_seconds(redis_pid)
    before = resident_megabytes(pid)
    while (answered := await _answered(client)) < count and time.perf_counter() - begun < WATCHED:  # noqa: ASYNC110  # Redis is asked, it tells nobody
        await asyncio.sleep(0.02)
    took, done = time.perf_counter() - begun, answered - first
    ours, redis = processor_seconds(pid) - busy, processor_seconds(redis_pid) - redis_busy
    print(
        f"Go processor {name}: {done / took:.0f} requests/s, {ours / done * 1e6:.0f} us of processor time each, "
        f"{redis / done * 1e6:.0f} us in Redis; memory {before:.0f} -> {resident_megabytes(pid):.0f} MB"
    )


async def _answered(client: Redis) -> int:
    length: int = await client.llen(_RESULTS)
    return length


@asynccontextmanager
async def _processor(binary: Path, work: Work, settings: dict[str, int]) -> AsyncIterator[int]:
    queue = {"queue_name": _QUEUE, "igw_base_url": work.gateway}
    transport = {"url": work.redis_url, **settings, "queues": [queue]}
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory, "kubeconfig")
        kubeconfig.write_text(json.dumps(_KUBECONFIG))  # noqa: ASYNC240  # a few bytes, before anything is measured
        health, metrics = free_ports(2)
        flags = [
            "--transport=redis-sortedset", f"--transport-config={json.dumps(transport)}",
            f"--concurrency={work.concurrency}", "--metrics-endpoint-auth=false", "--v=0", "--zap-log-level=error",
            f"--health-port={health}", f"--metrics-port={metrics}",
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            binary, *flags,
            env=os.environ | {"KUBECONFIG": str(kubeconfig), "GOMAXPROCS": "1"},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, {work.core}),
        )  # fmt: skip
        try:
            yield process.pid
        finally:
            if process.returncode is None:
                process.kill()  # it would wait for what is on its way
            await process.wait()
