"""`python -m tests.system.worker_process URL`: one worker in a pod, as its environment says; it ends with its standard input."""

import sys

import anyio
import anyio.to_thread

import registry
from registry import Contract
from registry.kubernetes.pod import read_pod
from registry.server import ContractServer
from tests.system.pod_registry import PORT


async def work(url: str, environment: dict[str, str]) -> None:
    contract = Contract()
    # on the pod's address alone: many pods share this machine's network
    server = ContractServer(contract, read_pod(environment).address, PORT)
    await server.start()
    opened = registry.open(url, contract=contract, port=PORT)
    async with opened, opened.register_instance("dynamo", "decode") as handle:
        handle.set_metadata({"model": {"name": "m"}})
        handle.set_ready("ready")
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
    await server.aclose()


if __name__ == "__main__":
    import os

    anyio.run(work, sys.argv[1], dict(os.environ))
