"""Killed, stopped and drained workers, and how soon watchers and the picker notice: real processes, real signals."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from discovery import (
    InstanceAddedEvent,
    InstanceEventStream,
    InstanceUpdatedEvent,
    MetadataClient,
    SourceDiscovery,
)
from discovery.metadata.silence import SilenceTimings
from discovery.opening import open_source
from epp.server import PickerServer
from tests.epp.local_picker import addresses, local
from tests.eventually import asked_until
from tests.free_port import free_port
from tests.started import ready, started


class Worker:
    """One simulated worker's process; `port` is where it serves requests."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def a_worker(root: Path, *options: str) -> AsyncIterator[Worker]:
    command = ["-m", "examples.simulator", "--discovery", f"file://{root}", "--instance-id", "w-0", *options]
    command += ["--namespace", "demo", "--component", "decode"]
    async with started(sys.executable, *command) as process:
        yield Worker(process, int((await ready(process))["http"].rpartition(":")[2]))


@asynccontextmanager
async def watched(url: str, *, wait: float = 1.0) -> AsyncIterator[InstanceEventStream]:
    client = MetadataClient(timeout=2.0, silence=SilenceTimings(wait=wait))
    async with (
        SourceDiscovery(open_source(url), client=client) as service,
        service.watch("demo", "decode", metadata=True) as stream,
    ):
        yield stream


async def next_event(stream: InstanceEventStream) -> object:
    async with asyncio.timeout(90):
        return await anext(stream)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_the_picker_leaves_a_killed_worker_alone_at_once(tmp_path: Path) -> None:
    """100 ms is the figure; tests bound it at ten times that. Two workers: the pick has somewhere else to go."""
    settings = local(discovery=f"file://{tmp_path}", namespace="demo", component="decode")
    async with (
        a_worker(tmp_path, "--instance-id", "stays"),
        PickerServer(settings) as picker,
        aiohttp.ClientSession() as session,
    ):
        metrics = addresses(picker)["metrics"]

        async def picked() -> set[str]:
            async with session.get(f"http://{metrics}/debug/endpoints") as answer:
                return {e["id"] for e in (await answer.json())["endpoints"] if e["reachable"]}

        async def seconds_until_left_alone(name: str) -> float:
            """From SIGKILL of a worker with that name."""
            async with a_worker(tmp_path, "--instance-id", name) as worker, asyncio.timeout(90):
                await asked_until(picked, lambda found: found == {name, "stays"})
                await asyncio.sleep(0.2)  # until the GETs are held
                worker.send(signal.SIGKILL)
                killed = now()
                while await picked() != {"stays"}:
                    await asyncio.sleep(0.002)
                return now() - killed

        took = [await seconds_until_left_alone("w-0")]
        while min(took) >= 1.0 and len(took) < 4:  # a busy machine makes it only slower
            took.append(await seconds_until_left_alone(f"w-{len(took)}"))
    assert min(took) < 1.0


async def test_a_worker_restarted_in_place_is_an_update_with_its_new_document(tmp_path: Path) -> None:
    """The same address, and a source that knows of no lives: only the epoch in the revision tells."""
    port = free_port()
    async with (
        a_worker(tmp_path, "--model", "first", "--contract-port", str(port)) as worker,
        watched(f"static://127.0.0.1:{port}") as stream,
    ):
        added = await next_event(stream)
        assert isinstance(added, InstanceAddedEvent)
        assert (await added.instance.metadata())["model"]["name"] == "first"
        worker.send(signal.SIGKILL)
        await worker.process.wait()
        async with a_worker(tmp_path, "--model", "second", "--contract-port", str(port)):
            document: dict[str, object] = {}
            while not document:  # it answers before it has set one
                event = await next_event(stream)
                if isinstance(event, InstanceUpdatedEvent) and event.new.revision != added.instance.revision:
                    document = await event.new.metadata()
            assert document["model"]["name"] == "second"
