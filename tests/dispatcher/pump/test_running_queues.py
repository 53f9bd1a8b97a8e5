"""Configurations that are applied to queues that run, those that cannot be, and slots for requests."""

import asyncio
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from adsum.config.problems import ConfigError
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.config.config_file import Config, read_config
from dispatcher.pump.slots import Slots
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
        async with RedisBroker(server.url) as broker, dispatching(broker, old) as queues:
            before = queues.running["batch"]
            with pytest.raises(QueueError, match="is a cluster"):
                await queues.apply(new)
            assert queues.running["batch"] is before
            async with producer(broker, old) as queue:
                assert (await queue.result(await queue.submit("r1"))).status_code == 200


@pytest.mark.parametrize("change", [INTAKE, {"results": "go-list"}])
async def test_what_needs_another_broker_stops_no_queue(target: Target, change: dict[str, object]) -> None:
    """A new broker takes a restart, so the queues that need it cannot be opened before."""
    old = configured(target.url, {"name": "batch"}, {"name": "other"})
    new = _with_redis(target.url, {"name": "other", "objective": "new"}, {"name": "batch", **change})
    async with MemoryBroker() as broker, dispatching(broker, old) as queues:
        before = dict(queues.running)
        with pytest.raises(ConfigError, match=r"queues\.batch: cannot be opened: .*Redis"):
            await queues.apply(new)
        assert queues.running == before, "nothing is half applied"
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
            dispatching(broker, config) as queues,
            producer(broker, config) as batch,
            producer(broker, config, "other") as other,
        ):
            await batch.submit("r1")
            await eventually(lambda: queues._answers.held >= 700_000)
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
    batch = {"name": "batch", "gate": {"type": "acme-cancelling"}}
    config = configured(target.url, {"name": "other"}, batch)
    async with MemoryBroker() as broker, dispatching(broker, config) as queues:
        assert queues.unready_reason() == ""
        async with producer(broker, config) as queue:
            await queue.submit("r1")
            await eventually(lambda: "queue batch is not served" in queues.unready_reason())


def _with_redis(url: str, *queues: dict[str, object]) -> Config:
    return configured(url, *queues, broker="redis://127.0.0.1:1/0")


async def test_as_many_as_are_free_and_at_least_one() -> None:
    slots = Slots(5)
    assert await slots.acquire(3) == 3
    assert await slots.acquire(3) == 2
    waiting = asyncio.create_task(slots.acquire(3))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release(1)
    assert await waiting == 1
    assert slots.in_use == 5


async def test_those_that_wait_share_what_becomes_free() -> None:
    slots = Slots(9)
    await slots.acquire(9)
    waiting = [asyncio.create_task(slots.acquire(9)) for _ in range(3)]
    await asyncio.sleep(0)
    slots.release(9)
    assert await asyncio.gather(*waiting) == [3, 3, 3]


async def test_first_come_first_served() -> None:
    slots = Slots(1)
    await slots.acquire(1)
    order: list[str] = []

    async def wait(name: str) -> None:
        await slots.acquire(1)
        order.append(name)
        slots.release(1)

    waiting = [asyncio.create_task(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    slots.release(1)
    late = asyncio.create_task(wait("late"))
    await asyncio.gather(*waiting, late)
    assert order == ["a", "b", "c", "late"]
    assert slots.in_use == 0


async def test_one_that_gives_up_passes_its_turn_on() -> None:
    slots = Slots(1)
    await slots.acquire(1)
    first, second = asyncio.create_task(slots.acquire(1)), asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    slots.release(1)
    first.cancel()  # its turn had come, it had not run yet
    assert await second == 1
    third = asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait([first, third])
    slots.release(1)
    assert await slots.acquire(9) == 1


async def test_a_limit_that_changes() -> None:
    slots = Slots(1)
    await slots.acquire(1)
    waiting = asyncio.create_task(slots.acquire(9))
    await asyncio.sleep(0)
    slots.limit = 4
    assert await waiting == 3
    slots.limit = 1
    slots.release(3)
    again = asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    assert not again.done()
    slots.release(1)
    assert await again == 1


async def test_a_limit_lowered_while_all_are_taken() -> None:
    slots = Slots(3)
    assert await slots.acquire(3) == 3
    slots.limit = 1
    waiting = asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release(2)
    await asyncio.sleep(0)
    assert not waiting.done(), "one is in flight, and the limit is one"
    slots.release(1)
    assert await waiting == 1
    assert slots.in_use == 1


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30), st.integers(1, 5))
def test_never_more_than_there_are(steps: list[tuple[int, bool]], limit: int) -> None:
    async def run() -> None:
        slots = Slots(limit)
        held: list[int] = []

        async def acquire(most: int) -> None:
            held.append(await slots.acquire(most))

        tasks = []
        for most, release in steps:
            tasks.append(asyncio.create_task(acquire(most)))
            await asyncio.sleep(0)
            assert slots.in_use == sum(held) <= limit
            if release and held:
                slots.release(held.pop())
            elif release:
                tasks[0].cancel()
        while any(not task.done() for task in tasks):
            await asyncio.sleep(0)
            if held:
                slots.release(held.pop())
        await asyncio.sleep(0)
        assert slots.in_use == sum(held)
        for task in tasks:
            task.cancel()

    asyncio.run(run())
