"""Measures ten watchers of 1,000 workers: time to the first set, latency of a metadata change, processor time, memory."""

import asyncio
import resource
import sys
import tempfile
import time

import discovery
from benchmarks.process_usage import percentile, processor_seconds, resident_megabytes
from discovery import InstanceEventStream, InstanceUpdatedEvent, ServiceDiscovery

_WORKERS = 1000
_WATCHERS = 10
_CHANGES = 300
_IDLE = 10.0


async def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as root:
        url = f"file://{root}"
        workers = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.many_workers", url, str(_WORKERS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert workers.stdin is not None
        assert workers.stdout is not None
        try:
            await workers.stdout.readline()
            async with discovery.open(url) as service:
                await _measure(service, workers.stdin, workers.pid)
        finally:
            workers.kill()
            await workers.wait()


async def _measure(service: ServiceDiscovery, changes: asyncio.StreamWriter, workers: int) -> None:
    memory, processor, started = resident_megabytes(), processor_seconds(), time.monotonic()
    streams = [service.watch("bench", "decode", metadata=True) for _ in range(_WATCHERS)]
    await asyncio.gather(*(_read(stream, _WORKERS) for stream in streams))
    print(
        f"{_WORKERS} workers, {_WATCHERS} watchers of their metadata in one process: all told after "
        f"{time.monotonic() - started:.2f} s, {processor_seconds() - processor:.2f} s of processor time, "
        f"+{resident_megabytes() - memory:.0f} MB"
    )
    await asyncio.sleep(2.0)  # until every GET is held
    processor, workers_before = processor_seconds(), processor_seconds(workers)
    await asyncio.sleep(_IDLE)
    print(
        f"idle: watchers {(processor_seconds() - processor) / _IDLE:.3f} cores, "
        f"all workers {(processor_seconds(workers) - workers_before) / _IDLE:.3f} cores"
    )
    latencies: list[float] = []
    processor = processor_seconds()
    for _ in range(_CHANGES):
        changes.write(b"change\n")
        latencies += await asyncio.gather(*(_latency(stream) for stream in streams))
    print(
        f"a change of metadata reaches a watcher after {percentile(latencies, 0.5) * 1e3:.1f} ms (p50), "
        f"{percentile(latencies, 0.99) * 1e3:.1f} ms (p99); {(processor_seconds() - processor) / _CHANGES * 1e6:.0f} µs "
        f"of processor time for all {_WATCHERS}"
    )
    for stream in streams:
        await stream.aclose()


async def _read(stream: InstanceEventStream, count: int) -> None:
    await stream.__aenter__()
    for _ in range(count):
        await anext(stream)


async def _latency(stream: InstanceEventStream) -> float:
    """Returns the seconds from the worker's `set_metadata` to this watcher's event."""
    async for event in stream:
        arrived = time.monotonic()
        if isinstance(event, InstanceUpdatedEvent):
            return arrived - float((await event.new.metadata())["at"])
    raise AssertionError("the stream ended")
