"""How soon a frozen worker is reported: its process is stopped by SIGSTOP, its connections stay open."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import discovery
from discovery import (
    Instance,
    InstanceAddedEvent,
    InstanceEventStream,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    MetadataClient,
    SourceDiscovery,
)
from discovery.memory import MemorySource, MemoryStore
from discovery.metadata.silence import VARIABLE, SilenceTimings, silence_timings
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, hang, serving
from tests.started import next_line, started
from tests.warm_python import WARM_PYTHON

WORKER = """
import asyncio, sys, registry
async def main():
    async with registry.open(sys.argv[1], instance_id="w-0").register_instance("prod", "decode") as worker:
        worker.set_ready("ready")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""
LISTED = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(404)
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@asynccontextmanager
async def process(script: str, *arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A worker's process and its first line of output."""
    async with started(WARM_PYTHON, "-c", script, *arguments, stdin=asyncio.subprocess.PIPE) as worker:
        yield worker, (await next_line(worker)).strip()


async def next_event(stream: InstanceEventStream, within: float = 90) -> discovery.InstanceEvent:
    async with asyncio.timeout(within):
        return await anext(stream)


async def freeze(stream: InstanceEventStream, worker: asyncio.subprocess.Process) -> InstanceUpdatedEvent:
    """Stops the worker; what the stream says of it then."""
    while True:
        await asyncio.sleep(1.0)  # until it was heard; one that was not is not missed
        worker.send_signal(signal.SIGSTOP)
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                while (lost := await anext(stream)).instance.reachable:
                    pass
            assert isinstance(lost, InstanceUpdatedEvent)
            return lost
        worker.send_signal(signal.SIGCONT)


async def frozen_and_thawed(stream: InstanceEventStream, worker: asyncio.subprocess.Process) -> None:
    assert isinstance(await next_event(stream), InstanceAddedEvent)
    await freeze(stream, worker)
    assert not next(iter(stream.instances.values())).reachable
    worker.send_signal(signal.SIGCONT)
    back = await next_event(stream)
    assert isinstance(back, InstanceUpdatedEvent)
    assert back.new.reachable


@asynccontextmanager
async def watching(url: str, **options: Any) -> AsyncIterator[InstanceEventStream]:
    metadata = options.pop("metadata", False)
    async with (
        discovery.open(url, **options) as found,
        found.watch("prod", "decode", metadata=metadata) as stream,
    ):
        yield stream


@pytest.mark.parametrize("metadata", [False, True])
async def test_every_watch_reports_a_frozen_worker(tmp_path: Path, metadata: bool) -> None:
    url = f"file://{tmp_path}"
    async with process(WORKER, url) as (worker, _), watching(url, metadata=metadata) as stream:
        await frozen_and_thawed(stream, worker)


@pytest.mark.parametrize("metadata", [False, True])
async def test_a_frozen_listed_server_that_is_polled_is_reported_too(metadata: bool) -> None:
    async with AsyncExitStack() as stack:
        server, port = await stack.enter_async_context(process(LISTED))
        where = f"static://127.0.0.1:{port}"
        stream = await stack.enter_async_context(watching(where, metadata=metadata))
        await frozen_and_thawed(stream, server)


async def test_a_watch_without_metadata_reports_nothing_but_silence(tmp_path: Path) -> None:
    """Its status header and its closed connection arrive before its source removes it."""
    url = f"file://{tmp_path}"
    async with process(WORKER, url) as (worker, _), watching(url, silent_after=60.0) as stream:
        added = await next_event(stream)
        assert added.instance.revision is None
        await asyncio.sleep(0.5)
        assert worker.stdin is not None
        worker.stdin.close()
        assert isinstance(await next_event(stream), InstanceRemovedEvent)


async def test_a_worker_that_never_answered_is_not_reported_as_silent() -> None:
    async with watching("static://127.0.0.1:9", silent_after=1.0) as stream:
        assert (await next_event(stream)).instance.reachable
        with pytest.raises(TimeoutError):
            await next_event(stream, 2.5)


async def test_a_silent_worker_that_answers_at_another_address_is_reachable_again(
    store: MemoryStore, worker: FakeWorker
) -> None:
    store.put(worker.instance())
    client = MetadataClient(timeout=1.0, silence=SilenceTimings(wait=1.0, margin=0.5))
    async with (
        serving(FakeWorker()) as moved,
        SourceDiscovery(MemorySource(store), client=client) as found,
        found.watch("prod", "decode") as stream,
    ):
        await eventually(lambda: worker.requests)
        worker.handler = hang
        while (await next_event(stream)).instance.reachable:
            pass
        store.put(moved.instance())
        while (event := await next_event(stream)).instance.port != moved.port or not event.instance.reachable:
            pass


async def test_watchers_of_one_component_share_one_held_get(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    async with (
        process(WORKER, url) as (worker, _),
        discovery.open(url, silent_after=1.0) as found,
        found.watch("prod", "decode") as first,
        found.watch("prod", "decode") as second,
    ):
        before = connections(worker.pid)
        await asyncio.sleep(1.5)
        # one that was silent for a moment is asked anew before it has closed the old one
        await eventually(lambda: connections(worker.pid) - before <= 1)
        for stream in (first, second):
            while not (await next_event(stream)).instance.reachable:
                pass  # it was slow to answer
        await freeze(first, worker)
        while (await next_event(second)).instance.reachable:
            pass


async def test_a_watch_without_metadata_monitors_a_bounded_number_of_workers() -> None:
    store = MemoryStore()
    for number in range(2100):
        where = f"127.3.{number // 200}.{number % 200 + 1}"
        store.put(Instance(f"w-{number}", "prod", "decode", where, 9, "one"))  # nobody listens there

    def followed() -> int:
        return sum(task.get_name().startswith("follow ") for task in asyncio.all_tasks())

    async with SourceDiscovery(MemorySource(store)) as found, found.watch("prod", "decode") as stream:
        assert len(stream.instances) == 2100
        await eventually(lambda: followed() == 2048, within=90)
        async with found.watch("prod", "decode", metadata=True):
            await eventually(lambda: followed() == 2100, within=90)


def connections(pid: int) -> int:
    """Open sockets of a process, without those that it closes meanwhile."""
    sockets = 0
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            sockets += os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:")
    return sockets


@pytest.mark.parametrize("seconds", [1.0, 1.5, 4.0, 60.0])
def test_the_longest_time_between_two_signs_of_life_is_within_the_bound(seconds: float) -> None:
    silence = SilenceTimings.detected_within(seconds)
    assert silence.wait + silence.margin < seconds
    assert 1.1 * silence.poll + silence.margin < seconds
    assert silence.in_every_watch


def test_zero_disables_detection_without_metadata() -> None:
    assert not SilenceTimings.detected_within(0).in_every_watch


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "0.5", "inf", "1e9"])
def test_invalid_values_are_refused_with_the_variables_name(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=rf"\${VARIABLE} is '{text}'; expected seconds from 1 to 3600, or 0"):
        silence_timings(None)
    if text != "soon":
        with pytest.raises(ValueError, match="silent_after is"):
            discovery.open("memory://x", silent_after=float(text))


def test_the_environment_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert silence_timings(None) == SilenceTimings.detected_within(4)
    monkeypatch.setenv(VARIABLE, "8")
    assert silence_timings(None) == SilenceTimings.detected_within(8)
    assert silence_timings(2) == SilenceTimings.detected_within(2)


def test_a_metadata_client_reads_the_environment_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "8")
    assert MetadataClient().silence == SilenceTimings.detected_within(8)
