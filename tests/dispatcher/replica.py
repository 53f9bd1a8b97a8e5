"""A process that acquires every slot of a gate and keeps it, for tests to kill."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.warm_python import WARM_PYTHON

REPLICA = """
import asyncio, json, sys
from dispatcher.gates.building import GateDependencies, build_gate
from dispatcher.gates.catalogue import parse_gate
from dispatcher.gates.gate import RefusedError
from dispatcher.gates.metering.meter import Meters
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.redis.client.connection import connect
from dispatcher.broker.redis.ledger import RedisLedger
from dispatcher.broker.redis.ledger import RedisQuotas

async def main():
    url, lease, document = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    async with (
        connect(url) as client, RedisLedger(client, "pool", lease_ms=lease) as ledger,
        RedisQuotas(client) as quotas, Meters() as meters,
        build_gate(parse_gate(document, "gate"), GateDependencies("pool", ledger, quotas, meters)) as gate,
    ):
        print("ready", flush=True)
        sys.stdin.readline()
        held, candidate = [], DispatchCandidate("same", "same", "tenant", 0, 10)
        while True:
            admission = gate.admit(candidate)
            try:
                await admission.__aenter__()
            except RefusedError as refusal:
                print(len(held), flush=True)
                await refusal.changed()
            else:
                held.append(admission)
                await asyncio.sleep(0.02)  # so that the others get some, too

asyncio.run(main())
"""


class Replica:
    """`held`: how many places it has, as of the last time it was refused one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.ready = False
        self.held = -1
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "ready":
                self.ready = True
            else:
                self.held = int(line)

    def go(self) -> None:
        """Let it take places, once it is ready."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def replica(url: str, lease_ms: int, gate: str) -> Iterator[Replica]:
    """One such process; `gate` is its JSON document."""
    command = [WARM_PYTHON, "-c", REPLICA, url, str(lease_ms), gate]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running = Replica(process)
    try:
        yield running
    finally:
        running.end()
