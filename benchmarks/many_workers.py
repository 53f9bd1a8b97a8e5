"""`python -m benchmarks.many_workers URL COUNT`: registers COUNT workers in one process, each with its own port for `/metadata`.

Prints `ready`; then for each line `change` on standard input one worker publishes the moment (monotonic clock, seconds)
as its metadata.
"""

import asyncio
import itertools
import resource
import sys
import time

import registry


async def main(url: str, count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    workers = []
    for number in range(count):
        handle = await registry.open(url, instance_id=f"w-{number}").register_instance("bench", "decode")
        handle.set_metadata({"model": {"name": "m"}, "at": 0.0})
        handle.set_ready("ready")
        workers.append(handle)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    turns = itertools.cycle(workers)
    while await loop.run_in_executor(None, sys.stdin.readline):
        next(turns).set_metadata({"model": {"name": "m"}, "at": time.monotonic()})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
