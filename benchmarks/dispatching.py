"""Measures the throughput of one dispatcher process, and the latency that it adds when it is idle.

The gateway answers at once; it and Redis run on the other core. Requests have 2 KiB; all settings are the defaults.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import go_processor
from benchmarks.process_usage import percentile, processor_seconds, resident_megabytes
from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import Queue, QueueRules
from dispatcher.broker.opening import open_broker
from examples.redis_process import redis_process

REQUESTS = 20_000
ROUNDS = 3
IDLE = 500
PAYLOAD = json.dumps({"model": "m", "prompt": "x" * 2000}).encode()
CONCURRENCY = 256
RULES = QueueRules(result_ttl_ms=30_000)


def add_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--go-processor", type=Path, metavar="FILE", help="measure this Go processor's binary also"
    )


async def main(requests: int = REQUESTS, rounds: int = ROUNDS, binary: Path | None = None) -> None:
    """`binary`: a Go async processor that is measured on the same work, in turn."""
    cores = sorted(os.sched_getaffinity(0))
    ours, theirs = cores[0], cores[-1]
    os.sched_setaffinity(0, {theirs})
    print(
        f"{rounds} x {requests} requests of {len(PAYLOAD)} bytes, {CONCURRENCY} in flight; cores {ours} | {theirs}"
    )
    async with (
        redis_process() as (url, redis_pid),
        _gateway() as gateway,
        open_broker(url) as broker,
        broker.queue("bench", RULES) as queue,
    ):
        for _ in range(rounds):
            await _submit(queue, requests)
            async with _dispatcher(url, gateway, ours) as pid:
                await _measure_rate(queue, requests, pid, redis_pid)
            if binary is not None:
                work = go_processor.Work(url, redis_pid, gateway, PAYLOAD, requests, CONCURRENCY, core=ours)
                await go_processor.measure(binary, work)
        async with _dispatcher(url, gateway, ours):
            await _measure_idle(queue)
    os.sched_setaffinity(0, cores)


async def _submit(queue: Queue, count: int) -> None:
    deadline_ms = int((time.time() + 3600) * 1000)
    for start in range(0, count, 500):
        batch = range(start, min(count, start + 500))
        await asyncio.gather(*(queue.submit(Request(f"r{n}", PAYLOAD, deadline_ms)) for n in batch))


async def _measure_rate(queue: Queue, count: int, pid: int, redis_pid: int) -> None:
    """Measures from 10% to 100% of the requests, so that the start of the process does not count."""
    pending = count
    while pending > count * 0.9:
        await asyncio.sleep(0.01)
        pending = (await queue.totals()).pending
    begun, busy, redis_busy, first = (
        time.perf_counter(), processor_seconds(pid), processor_seconds(redis_pid), pending
    )  # fmt: skip
    before = resident_megabytes(pid)
    while pending > 0:
        await asyncio.sleep(0.02)
        pending = (await queue.totals()).pending
    took = time.perf_counter() - begun
    ours, redis = processor_seconds(pid) - busy, processor_seconds(redis_pid) - redis_busy
    totals = await queue.totals()
    assert totals.succeeded == totals.submitted, totals
    print(
        f"{first / took:8.0f} requests/s, {ours / first * 1e6:.0f} us of processor time each in the dispatcher, "
        f"{redis / first * 1e6:.0f} us in Redis; memory {before:.0f} -> {resident_megabytes(pid):.0f} MB"
    )


async def _measure_idle(queue: Queue) -> None:
    """Measures one request at a time, from submission to the result at the waiting client."""
    took = []
    for number in range(IDLE):
        deadline_ms = int((time.time() + 60) * 1000)
        begun = time.perf_counter()
        request = await queue.submit(Request(f"i{number}", PAYLOAD, deadline_ms))
        result = await queue.wait_result(request.id, request.token, timeout=10)
        took.append((time.perf_counter() - begun) * 1000)
        assert result is not None
        await asyncio.sleep(0.005)
    print(
        f"idle: submitted to answered p50 {percentile(took, 0.5):.1f} ms, p99 {percentile(took, 0.99):.1f} ms, "
        f"most {max(took):.1f} ms"
    )


@asynccontextmanager
async def _gateway() -> AsyncIterator[str]:
    async with _process("-m", "benchmarks.noop_gateway") as process:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def _dispatcher(broker: str, gateway: str, core: int) -> AsyncIterator[int]:
    document = {
        "broker": broker,
        "http": {"port": 0},
        "targets": [{"name": "pool", "url": gateway, "concurrency": CONCURRENCY}],
        "queues": [{"name": "bench", "target": "pool", "gate": {"type": "constant"}, "result_ttl": "30s"}],
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config.yaml")
        path.write_text(json.dumps(document))  # noqa: ASYNC240  # a few bytes, before anything is measured
        async with _process("-m", "dispatcher", "--config", str(path)) as process:
            os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            ready = await process.stdout.readline()
            assert ready.startswith(b"ready"), ready
            yield process.pid


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatching", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    add_flags(parser)
    given = parser.parse_args()
    asyncio.run(main(given.requests, given.rounds, given.go_processor))
