"""Large request bodies, and targets that answer before a body ends."""

import asyncio
import gc
import tracemalloc

import pytest

from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from tests.dispatcher.listening import LARGE, PATH, Listening, listening
from tests.eventually import eventually
from tests.open_connections import connected

TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno"


@pytest.mark.parametrize("closes", [False, True])
async def test_an_answer_before_the_body_was_read_is_the_answer(closes: bool) -> None:
    """What is left of the body goes nowhere, nor does another request on that connection."""

    async def refuse(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            TOO_LARGE if not closes else TOO_LARGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        )
        await seen.over.wait()

    async with listening(refuse) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        for number in (1, 2):
            assert await gateway.post(PATH, {}, b"x" * LARGE, 90) == GatewayAnswer(413, b"no")
            assert seen.connections == number
            await eventually(lambda: not connected(seen.port))


async def test_an_answer_while_the_body_is_still_read_ends_the_upload() -> None:
    """The target reads on: it does not get what is left of the body, only a connection that ended."""
    taken: list[int] = []

    async def hasty(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1_000_000)
        writer.write(TOO_LARGE)
        answered.set()
        await go_on.wait()
        taken.append(1_000_000)
        while part := await reader.read(1_000_000):
            taken.append(len(part))

    answered, go_on = asyncio.Event(), asyncio.Event()
    async with listening(hasty) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        posting = asyncio.create_task(gateway.post(PATH, {}, b"x" * LARGE, 90))
        await answered.wait()
        assert await posting == GatewayAnswer(413, b"no")
        go_on.set()
        another = asyncio.create_task(gateway.post(PATH, {}, b"x", 90))
        await eventually(lambda: seen.connections == 2)
        another.cancel()
        await asyncio.wait([another])
    assert sum(taken) < LARGE


@pytest.mark.parametrize("size", [100_000, LARGE])
async def test_21_cancelled_in_the_middle_of_a_body_nothing_is_left_of_it(size: int) -> None:
    """Neither its connection nor the task that wrote it."""

    async def stall(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await seen.over.wait()

    begun = asyncio.Event()
    async with listening(stall) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        posting = asyncio.create_task(gateway.post(PATH, {}, b"x" * size, 60))
        await begun.wait()
        await asyncio.wait([posting], timeout=0.3)  # until the kernel takes no more of it
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
        assert not [task for task in asyncio.all_tasks() if "_write" in repr(task.get_coro())]
        await eventually(lambda: not connected(seen.port))


async def test_a_slow_target_does_not_make_us_hold_its_body_twice() -> None:
    async def stall(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await seen.over.wait()

    body = b"x" * (3 * LARGE)
    async with listening(stall) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        tracemalloc.start()
        try:
            assert await gateway.post(PATH, {}, body, 0.3) == NoAnswer("no answer within 0.3 s")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 4_000_000


@pytest.mark.parametrize("politely", [False, True])
async def test_15_a_target_that_ends_the_connection_in_the_middle_of_a_body(
    politely: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, as the answer; the task that wrote has nothing to add."""

    async def end(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1_000_000)
        if not politely:
            writer.transport.abort()
            return
        writer.write_eof()
        while await reader.read(1_000_000):
            pass

    async with listening(end) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        said = await gateway.post(PATH, {}, b"x" * LARGE, 90)
        assert isinstance(said, NoAnswer)
        assert said.reason.startswith("the connection ended")
        assert (said.final, said.reached, seen.connections) == (False, True, 1)
        gc.collect()
    assert not caplog.records
