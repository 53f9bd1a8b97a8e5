"""A process that claims and holds requests until a test kills it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.warm_python import WARM_PYTHON

OWNER = """
import asyncio, sys
from dispatcher.broker.contract.message import Result
from dispatcher.broker.opening import open_broker
from dispatcher.broker.contract.queue import QueueRules

async def main():
    url, stop_after, count, lease_ms = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    async with open_broker(url) as broker, broker.queue("q", QueueRules(lease_ms=lease_ms)) as queue:
        claims = await queue.claim(count, owner="process")
        assert len(claims) == count
        if stop_after == "retry":
            for claim in claims:
                await queue.retry(claim, 500)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        done = [await queue.finish(claim, Result("", "", 200, b"from the process")) for claim in claims]
        print(sum(done), flush=True)

asyncio.run(main())
"""


@contextmanager
def owner(
    url: str, stop_after: str, count: int = 1, lease_ms: int = 15_000
) -> Iterator["subprocess.Popen[str]"]:
    """A process that has done its part as far as `stop_after` (claim, retry) and waits for a line, then finishes
    and says how many of its results counted."""
    process = subprocess.Popen(
        [WARM_PYTHON, "-c", OWNER, url, stop_after, str(count), str(lease_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
