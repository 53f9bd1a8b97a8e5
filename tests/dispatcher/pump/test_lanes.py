"""Configurations that are applied to queues that run, and those that cannot be."""

import asyncio
from pathlib import Path

import pytest
import yaml

from adsum.config.problems import ConfigError
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.config.config_file import Config, read_config
from tests.dispatcher.dispatching import configured, dispatching, document, producer
from tests.dispatcher.listening import Listening, listening, request
from tests.dispatcher.target import Target
from tests.eventually import eventually
from tests.installed_package import install, see
from tests.redis_server import RedisServer

INTAKE = {"intake": {"key": "in"}}


async def test_what_the_broker_refuses_stops_no_queue(target: Target, tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster=True) as server:
        old = configured(target.url, {"name": "batch"}, broker=server.url)
        new = configured(target.url, {"name": "batch", **INTAKE}, broker=server.url)
        async with RedisBroker(server.url) as broker, dispatching(broker, old) as lanes:
            before = lanes.running["batch"]
            with pytest.raises(QueueError, match="is a cluster"):
                await lanes.apply(new)
            assert lanes.running["batch"] is before
            async with producer(broker, old) as queue:
                assert (await queue.result(await queue.submit("r1"))).status_code == 200


@pytest.mark.parametrize("change", [INTAKE, {"results": "go-list"}])
async def test_what_needs_another_broker_stops_no_queue(target: Target, change: dict[str, object]) -> None:
    """A new broker takes a restart, so the queues that need it cannot be opened before."""
    old = configured(target.url, {"name": "batch"}, {"name": "other"})
    new = _with_redis(target.url, {"name": "other", "objective": "new"}, {"name": "batch", **change})
    async with MemoryBroker() as broker, dispatching(broker, old) as lanes:
        before = dict(lanes.running)
        with pytest.raises(ConfigError, match=r"queues\.batch: cannot be opened: .*Redis"):
            await lanes.apply(new)
        assert lanes.running == before, "nothing is half applied"
        async with producer(broker, old) as queue:
            assert (await queue.result(await queue.submit("r1"))).status_code == 200


async def test_the_answers_of_all_queues_share_their_memory() -> None:
    """Each of these two fits into the limit of the file, both do not: the larger one, which has not ended, gives way."""
    gave_way = asyncio.Event()

    async def serve(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_large = b'"r1"' in await request(seen, reader)
        size = 700_000 if is_large else 600_000
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (size + 1) + b"x" * size)
        await reader.read(1)
        if is_large:
            gave_way.set()

    async with MemoryBroker() as broker, listening(serve) as seen:
        text = document(f"http://127.0.0.1:{seen.port}", {"name": "batch"}, {"name": "other"})
        config = read_config(yaml.safe_dump(yaml.safe_load(text) | {"answer_memory": "1MiB"}), {})
        async with (
            dispatching(broker, config) as lanes,
            producer(broker, config) as batch,
            producer(broker, config, "other") as other,
        ):
            await batch.submit("r1")
            await eventually(lambda: lanes._answers.held >= 700_000)
            await other.submit("r2")
            async with asyncio.timeout(90):
                await gave_way.wait()


GATE = """\
import asyncio
from contextlib import asynccontextmanager
from dispatcher.extension import GateDeclaration, Slot


class Gate:
    def __init__(self, given, context): ...

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_): ...

    def budget(self):
        return 1.0

    @asynccontextmanager
    async def admit(self, candidate):
        raise asyncio.CancelledError
        yield Slot()


CANCELLING = GateDeclaration(build=Gate)
"""


async def test_a_queue_whose_pump_has_ended_is_named(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate that raises CancelledError ends the pump: nothing can tell that from its cancellation."""
    points = {"adsum.gates": {"acme-cancelling": "acme_cancelling:CANCELLING"}}
    see(monkeypatch, install(tmp_path / "acme", "acme_cancelling", points, module=GATE))
    queues = ({"name": "other"}, {"name": "batch", "gate": {"type": "acme-cancelling"}})
    config = configured(target.url, *queues)
    async with MemoryBroker() as broker, dispatching(broker, config) as lanes:
        assert lanes.unready_reason() == ""
        async with producer(broker, config) as queue:
            await queue.submit("r1")
            await eventually(lambda: "queue batch is not served" in lanes.unready_reason())


def _with_redis(url: str, *queues: dict[str, object]) -> Config:
    return configured(url, *queues, broker="redis://127.0.0.1:1/0")
