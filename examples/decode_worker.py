"""A decode worker that finds its prefill workers by itself: the last step of seed 002's flow, with nothing between them.

    python -m examples.decode_worker prefill    # in some shells
    python -m examples.decode_worker decode     # in another; kill and start prefill workers meanwhile

Both meet at $ADSUM_DISCOVERY, this user's own directory by default. A prefill worker says in its metadata how its KV cache is
reached, and which revision it is; its host is the one that discovery knows, never one from a document.
"""

import argparse
import asyncio
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
from aiohttp import web

import discovery
import registry

NAMESPACE: Final = "dynamo"
REVISION: Final = "1"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60.0, connect=1.0)


class PrefillWorkers:
    """Asks the prefill workers of a watch, each in its turn."""

    def __init__(
        self, stream: discovery.InstanceEventStream, session: aiohttp.ClientSession, revision: str = REVISION
    ) -> None:
        self._stream = stream
        self._session = session
        self._revision = revision
        self._asked = 0

    async def prefill(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Where the KV cache of the prompt is; None: nobody computed it, so the decode worker does."""
        for worker in self._in_turn():
            metadata = await worker.metadata()  # the pushed copy: nobody is asked
            transfer = metadata.get("transport", {}).get("nixl", {})
            if metadata.get("labels", {}).get("revision") != self._revision or "port" not in transfer:
                continue  # its KV cache may be another one, or cannot be fetched
            try:
                async with self._session.post(
                    f"{worker.url}/prefill", json=request, timeout=_TIMEOUT
                ) as answer:
                    answer.raise_for_status()
                    blocks = await answer.json()
            except (aiohttp.ClientError, TimeoutError):
                continue
            return {"remote_host": worker.address, "remote_port": transfer["port"], **blocks}
        return None

    def _in_turn(self) -> Iterator[discovery.Instance]:
        """Who may be asked, another one first each time; unreachable is a hint, so those come last."""
        workers = sorted(self._stream.instances.values(), key=lambda one: one.id)
        self._asked += 1
        at = self._asked % max(1, len(workers))
        yield from sorted(workers[at:] + workers[:at], key=lambda one: not one.reachable)


def prefill_app(name: str) -> web.Application:
    """What a model server does when it is asked for a prompt."""

    async def prefill(request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        return web.json_response({"remote_engine_id": name, "remote_block_ids": [len(prompt)]})

    app = web.Application()
    app.router.add_post("/prefill", prefill)
    return app


async def run_prefill(opened: registry.ServiceRegistry) -> None:
    async with opened.register_instance(NAMESPACE, "prefill") as handle:
        runner = web.AppRunner(prefill_app(handle.instance_id()))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            transport = {"http": {"port": runner.addresses[0][1]}, "nixl": {"port": 5600}}
            handle.set_metadata({"transport": transport, "labels": {"revision": REVISION}})
            handle.set_ready("ready")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


async def run_decode(service: discovery.ServiceDiscovery) -> None:
    async with (
        service.watch(NAMESPACE, "prefill", metadata=True) as stream,
        aiohttp.ClientSession() as session,
    ):
        workers = PrefillWorkers(stream, session)
        while True:
            found = await workers.prefill({"prompt": "Tell me about the sea."})
            print("computes the prompt itself" if found is None else f"fetches {found}", flush=True)
            await asyncio.sleep(1.0)


async def main(role: str) -> None:
    if role == "prefill":
        await run_prefill(registry.open())
    else:
        async with discovery.open() as service:
            await run_decode(service)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=["prefill", "decode"])
    asyncio.run(main(parser.parse_args().role))
